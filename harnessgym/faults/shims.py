"""Faults inside the sandbox, for black-box harnesses: shim programs that come first on the PATH.

A harness that runs `pytest` runs our shim. The shim applies the faults of the plan, logs them in the
workspace, and then runs the real program. A harness that names a program by its full path bypasses the shims.
It can also find them and change their log. So the log is compared with the plan and with the number of
commands, and every difference is reported. Harness and shims run as the same user, so a log without
differences is likely right, but not proven.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from harnessgym.errors import ConfigError, SandboxError
from harnessgym.faults.around import FOLDER, WrappedSandbox
from harnessgym.faults.fault import FlakyFault, InjectionFault
from harnessgym.faults.plan import Applied, DrawnFault, FaultPlan
from harnessgym.sandbox import ExecOptions, ExecResult, Sandbox

SCRIPT = Path(__file__).parent / "shim.sh"
HORIZON = 1_000
"""Number of commands per fault for which the plan is written out. Later commands meet no fault."""
_PRELOADED = frozenset({"clock_jump", "disk_full"})
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Account:
    """The faults that the shims report."""

    applied: tuple[Applied, ...]
    doubt: str | None = None
    """How the log contradicts the plan or the number of commands; None if it does not."""


class ShimmedSandbox(WrappedSandbox):
    """Runs commands with the shims on their PATH. Call `collect` when the harness has ended."""

    def __init__(self, sandbox: Sandbox, plan: FaultPlan, proxy_socket: Path | None = None) -> None:
        """Raises ConfigError for a fault that names no program."""
        super().__init__(sandbox, plan, proxy_socket)
        self._faults = [
            (index, fault)
            for index, fault in enumerate(plan.section.inject)
            if fault.kind != "dropped_connection"
        ]
        for _, fault in self._faults:
            if _WILD & set(fault.program) or "/" in fault.program:
                raise ConfigError(
                    f"A {fault.kind} fault inside a sandbox needs the name of a program, not "
                    f"{fault.program!r}."
                )
        self._installed = False

    async def exec(self, cmd: Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """See `Sandbox.exec`."""
        if self._faults:
            folder, path = await self._lay()
            env = options.get("env") or {}
            options["env"] = {**env, "PATH": f"{folder}/{FOLDER}/bin:{env.get('PATH', path)}"}
        return await super().exec(cmd, **options)

    async def collect(self) -> Account:
        """Returns the applied faults, dropped connections too, and removes the shims from the workspace.

        Call it once, at the end.
        """
        relayed = tuple(self.plan.applied)
        if not self._installed:
            return Account(relayed)
        with tempfile.TemporaryDirectory(prefix="harnessgym-faults-") as temporary:
            local = Path(temporary) / "faults"
            try:
                await self.sandbox.download(FOLDER, local)
                account = await asyncio.to_thread(self._account, local)
            except (FileNotFoundError, SandboxError) as error:
                account = Account((), f"What the shims wrote down cannot be read: {error}")
        await self.sandbox.exec(["rm", "-rf", FOLDER.partition("/")[0]])
        return Account((*relayed, *account.applied), account.doubt)

    async def _lay(self) -> tuple[str, str]:
        """Writes the shims to the workspace once.

        Returns the workspace's path and the PATH, as seen inside the sandbox.
        """
        surroundings = await self.surroundings()
        if self._installed:
            return surroundings
        # The shims go first on the PATH of every command, so all their files must be there before the first.
        script = SCRIPT.read_bytes()
        for program in sorted({fault.program for _, fault in self._faults}):
            await self.sandbox.write(f"{FOLDER}/bin/{program}", script)
        await self.sandbox.write(f"{FOLDER}/plan", self._text().encode())
        await self.sandbox.write(f"{FOLDER}/log", b"")
        await self.sandbox.write(f"{FOLDER}/state/made", b"")
        for index, fault in self._faults:
            if isinstance(fault, FlakyFault | InjectionFault):
                text = fault.message if isinstance(fault, FlakyFault) else fault.text
                await self.sandbox.write(f"{FOLDER}/text.{index}", f"{text}\n".encode() if text else b"")
        if any(fault.kind in _PRELOADED for _, fault in self._faults):
            await self.lay_library()
        made = await self.sandbox.exec(["sh", "-c", f"chmod +x {FOLDER}/bin/*"])
        if not made.ok:
            raise SandboxError(f"Faults cannot be laid into the sandbox: {made.describe(500)}.")
        self._installed = True
        return surroundings

    def _text(self) -> str:
        """The plan in the shims' format: one line per fault, with ordinals and amounts."""
        lines = []
        for index, fault in self._faults:
            drawn = " ".join(f"{draw.ordinal}={draw.amount:f}" for draw in self.plan.schedule(index, HORIZON))
            lines.append(f"{index}\t{fault.kind}\t{fault.program}\t{fault.arguments}\t {drawn} \n")
        return "".join(lines)

    def _account(self, local: Path) -> Account:
        """Compares the log with the plan and with the commands that the shims counted."""
        # The harness can write all three, so unknown or malformed lines are counted, never trusted.
        planned = {
            (index, draw.ordinal): draw
            for index, _ in self._faults
            for draw in self.plan.schedule(index, HORIZON)
        }
        counted = {
            key
            for path in (local / "state").glob("seen.*")
            if (key := _key(path.name.split(".")[1:])) is not None
        }
        entries, strange = _entries((local / "log").read_text(errors="replace"), planned)
        applied = tuple(Applied(draw, command, "path") for draw, command in entries.values())
        silent = len((counted & planned.keys()) - entries.keys())
        uncounted = len(entries.keys() - counted)
        checks = {
            "its plan was changed": (local / "plan").read_text(errors="replace") != self._text(),
            f"{strange} lines of its log are not in the plan, or twice there": strange,
            f"{silent} faults that were due are not in the log": silent,
            f"{uncounted} faults are in the log for commands that were not counted": uncounted,
        }
        wrong = [text for text, is_so in checks.items() if is_so]
        return Account(
            applied, f"The account of the shims does not agree: {'; '.join(wrong)}." if wrong else None
        )


def _entries(
    text: str, planned: Mapping[tuple[int, int], DrawnFault]
) -> tuple[dict[tuple[int, int], tuple[DrawnFault, str]], int]:
    """Returns the log's lines that are in the plan, and the number of lines that are not or are repeated."""
    entries: dict[tuple[int, int], tuple[DrawnFault, str]] = {}
    strange = 0
    for line in text.splitlines():
        *numbers, command = line.split("\t", 2)
        key = _key(numbers)
        if key is None or key not in planned or key in entries:
            strange += 1
        else:
            entries[key] = planned[key], command
    return entries, strange


def _key(numbers: Sequence[str]) -> tuple[int, int] | None:
    if len(numbers) != 2 or not all(
        number.isascii() and number.isdigit() and len(number) < 10 for number in numbers
    ):
        return None
    return int(numbers[0]), int(numbers[1])
