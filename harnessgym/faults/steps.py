"""Applies faults around `Sandbox.exec`, for the steps of an environment."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from harnessgym.faults.around import CLOCK, DISK, WrappedSandbox
from harnessgym.faults.fault import FlakyFault, InjectionFault
from harnessgym.faults.plan import DrawnFault
from harnessgym.sandbox import ExecOptions, ExecResult, OnOutput

_KILLED = 9


@dataclass(frozen=True, slots=True)
class _Step:
    """The faults of one command, by kind."""

    draws: Mapping[str, DrawnFault]

    def amount(self, kind: str) -> float:
        return self.draws[kind].amount if kind in self.draws else 0.0


class FaultySandbox(WrappedSandbox):
    """Applies the faults of the plan to every command."""

    async def exec(self, cmd: Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """See `Sandbox.exec`."""
        step = _Step({draw.fault.kind: draw for draw in self.plan.decide(cmd)})
        timeout_s = options.get("timeout_s")
        late = step.amount("latency")
        if late:
            self._note(step, "latency", cmd)
            await asyncio.sleep(late if timeout_s is None else min(late, timeout_s))
            if timeout_s is not None and late >= timeout_s:
                return _unrun(None, timed_out=True, wall_s=timeout_s)
        instead = self._instead(step, cmd)
        if instead is not None:
            return replace(instead, wall_s=late)
        # The command's end by our shorter timeout becomes a kill below. If its own timeout comes first, it
        # just times out.
        own_limit = None if timeout_s is None else timeout_s - late
        killed_at = step.amount("oom_kill")
        dies = killed_at > 0 and (own_limit is None or killed_at < own_limit)
        options["env"] = await self._environment(step, options.get("env"), cmd)
        options["timeout_s"] = killed_at if dies else own_limit
        result = await super().exec(cmd, **options)
        if dies and result.timed_out:
            self._note(step, "oom_kill", cmd)
            result = replace(result, timed_out=False, exit_code=None, signal=_KILLED)
        return self._planted(
            step, replace(result, wall_s=result.wall_s + late), cmd, options.get("on_output")
        )

    def _note(self, step: _Step, kind: str, command: Sequence[str]) -> None:
        self.plan.note(step.draws[kind], command, "exec")

    def _instead(self, step: _Step, command: Sequence[str]) -> ExecResult | None:
        """The result of a command that a fault keeps from running; None if it runs."""
        if "flaky" in step.draws:
            self._note(step, "flaky", command)
            fault = step.draws["flaky"].fault
            assert isinstance(fault, FlakyFault)
            return _unrun(fault.exit_code, stderr=_lines(fault.message))
        if "oom_kill" in step.draws and step.amount("oom_kill") == 0:
            self._note(step, "oom_kill", command)
            return _unrun(None, signal=_KILLED)
        return None

    async def _environment(
        self, step: _Step, env: Mapping[str, str] | None, command: Sequence[str]
    ) -> Mapping[str, str] | None:
        wanted = {"clock_jump": CLOCK, "disk_full": DISK}
        changed = {name: f"{step.amount(kind):f}" for kind, name in wanted.items() if kind in step.draws}
        if not changed:
            return env
        for kind in wanted.keys() & step.draws.keys():
            self._note(step, kind, command)
        preloaded = f"{(env or {}).get('LD_PRELOAD', '')} {await self.lay_library()}".strip()
        return {**(env or {}), **changed, "LD_PRELOAD": preloaded}

    def _planted(
        self, step: _Step, result: ExecResult, command: Sequence[str], on_output: OnOutput | None
    ) -> ExecResult:
        """Appends an injection's text to the output of a result."""
        if "injection" not in step.draws:
            return result
        fault = step.draws["injection"].fault
        assert isinstance(fault, InjectionFault)
        self._note(step, "injection", command)
        text = _lines(fault.text)
        if on_output is not None:
            on_output("stdout", text)
        return replace(result, stdout=result.stdout + text)


def _lines(text: str) -> bytes:
    return f"{text}\n".encode() if text else b""


def _unrun(
    exit_code: int | None,
    *,
    signal: int | None = None,
    stderr: bytes = b"",
    timed_out: bool = False,
    wall_s: float = 0.0,
) -> ExecResult:
    return ExecResult(exit_code, signal, b"", stderr, False, False, timed_out, wall_s)
