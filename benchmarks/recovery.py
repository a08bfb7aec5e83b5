"""Kill processes of a training run with SIGKILL, over and over, and check that nothing was lost and nothing
happened twice.

One *campaign* is one run of the quickstart's task with a schedule of kills: before each, a look at which
calls are committed; at the end, every one of them must still be there unchanged, every step trained once, and
`traces verify` green.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from sqlalchemy import Connection, func, select

from harnessgym.process import ProcessId, identify
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, counts, rollouts, runs
from harnessgym.store.calls import FINISHED
from harnessgym.store.tables import calls, trained
from harnessgym.supervisor.progress import read_metrics
from harnessgym.traces.verification.verify import verify

VICTIMS = ("proxy", "engine", "node", "trainer", "supervisor")
"""Kinds of process. Of the engines, one is picked at random each time."""
ALLOWED_ENDS = ("finished", "node_lost")
"""Stop reasons of rollouts that end by themselves, or that run again because their node died."""
_PATIENCE_S = 120.0
T = TypeVar("T")


@dataclass
class Report:
    """What a campaign found."""

    kills: dict[str, int] = field(default_factory=dict)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    """Per kind of victim: seconds from each kill to the run's next committed call or training step,
    whoever makes it."""
    next_step_s: dict[str, list[float]] = field(default_factory=dict)
    """Per kind of victim: seconds from each kill to the next training step."""
    calls: int = 0
    lost: int = 0
    """Calls that were committed before a kill and are gone or changed."""
    trained_twice: int = 0
    findings: list[str] = field(default_factory=list)
    """What `traces verify` says."""
    stop_reasons: dict[str, int] = field(default_factory=dict)
    """How the rollouts ended; a kill must never end one with a verdict of its own (see `judged`)."""
    failed_rollouts: int = 0
    steps: int = 0
    eta: int = 0
    staleness: int = 0
    """Of the oldest trained token."""
    noted: dict[str, float] = field(default_factory=dict)
    """What else a kind of campaign counts."""
    wall_s: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled, too stale, found wrong, or judged because something was
        killed.
        """
        return not (
            self.lost or self.trained_twice or self.findings or self.staleness > self.eta or self.judged
        )

    @property
    def judged(self) -> int:
        """Rollouts that ended as they would not have without the kills."""
        return sum(count for reason, count in self.stop_reasons.items() if reason not in ALLOWED_ENDS)


@dataclass
class Campaign:
    """One run and the kills in it. `victims[i]` is killed at a random moment of training step i + 1."""

    folder: Path
    victims: Sequence[str]
    seed: int
    overrides: Sequence[str] = ()
    command: ClassVar[str] = "train"
    to_the_end: ClassVar[bool] = True
    """Whether the run goes on to its end after the last kill; otherwise it is interrupted there."""
    record: ClassVar[str] = "processes.json"
    """File of the run's folder that is written once processes run."""
    _committed: dict[str, str] = field(default_factory=dict)
    _supervisor: subprocess.Popen[bytes] | None = None

    def run(self) -> Report:
        """Run to the end. Raises `RuntimeError` if the run stops making progress or fails."""
        draw, report, began = random.Random(self.seed), Report(), time.monotonic()
        try:
            self._start()
            for step, victim in enumerate(self.victims):
                self._wait(partial(self._begun, step), f"step {step}")
                self._await_moment(draw)
                if self._steps() >= self._total():
                    break
                self._kill(
                    victim, draw.choice(("engine-0", "engine-1")) if victim == "engine" else victim, report
                )
            if self.to_the_end:
                self._wait(self._finished, "the end")
        finally:
            self._end()
        self._examine(report)
        report.wall_s = time.monotonic() - began
        return report

    def _start(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "harnessgym",
            self.command,
            "examples/quickstart.toml",
            "--folder",
            str(self.folder),
        ]
        settings = ["--evaluation.tasks", "0", "--supervisor.max_restarts", "1000", *self.overrides]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._supervisor = subprocess.Popen([*command, *settings], stdout=log, stderr=log)

    def _end(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._supervisor.wait(timeout=20)

    def _begun(self, step: int) -> bool:
        return self._steps() >= step and self._progress() > 0

    def _await_moment(self, draw: random.Random) -> None:
        """Wait for the moment of the next kill."""
        time.sleep(draw.uniform(0.0, 1.2))

    def _kill(self, kind: str, victim: str, report: Report) -> None:
        self._wait(lambda: self._runs(victim), f"a running {victim}")
        self._committed |= self._read(committed_calls)
        steps = self._steps()
        if not self._strike(victim):
            return
        killed, before = time.monotonic(), self._progress()
        self._revive(victim)
        self._wait(lambda: self._progress() > before, f"progress after {victim} was killed")
        report.kills[kind] = report.kills.get(kind, 0) + 1
        report.recovery_s.setdefault(kind, []).append(time.monotonic() - killed)
        self._wait(lambda: self._steps() > steps, f"a step after {victim} was killed")
        report.next_step_s.setdefault(kind, []).append(time.monotonic() - killed)
        self._settle(victim, killed)

    def _runs(self, victim: str) -> bool:
        """Whether it is there to be killed."""
        return self._process(victim) is not None

    def _strike(self, victim: str) -> bool:
        """SIGKILL. False if the victim is gone by itself."""
        process = self._process(victim)
        if process is not None:
            process.signal(signal.SIGKILL)
        return process is not None

    def _revive(self, victim: str) -> None:
        """Start again what nobody else does."""
        if victim == "supervisor":
            assert self._supervisor is not None
            self._supervisor.wait()
            self._start()

    def _settle(self, victim: str, killed: float) -> None:
        """Wait until all is as it was before a kill; by default nothing more is waited for than the next
        step.
        """

    def _process(self, victim: str) -> ProcessId | None:
        if victim == "supervisor":
            assert self._supervisor is not None
            return identify(self._supervisor.pid) if self._supervisor.poll() is None else None
        try:
            entry = json.loads(RunFolder(self.folder).processes_path.read_text()).get(victim)
        except (FileNotFoundError, ValueError):
            return None
        found = ProcessId(*entry) if entry else None
        return found if found is not None and found.alive() else None

    def _examine(self, report: Report) -> None:
        now = self._read(committed_calls)
        report.calls = len(now)
        report.lost = sum(now.get(call_id) != digest for call_id, digest in self._committed.items())
        report.trained_twice = self._read(_trained_twice)
        report.steps = self._steps()
        report.eta, report.staleness = (
            RunFolder(self.folder).config().trainer.max_staleness,
            self._read(_stalest),
        )
        with TraceStore.open(RunFolder(self.folder).store_url()) as store:
            report.findings = [
                f"{item.kind}: {item.where}: {item.message}" for item in verify(store, None).findings
            ]
            run = store.read(runs.only)
            assert run is not None
            report.stop_reasons = store.read(lambda conn: counts.stop_reasons(conn, run.id))
            report.failed_rollouts = store.read(lambda conn: rollouts.rollout_states(conn, run.id)).get(
                "failed", 0
            )

    def _finished(self) -> bool:
        assert self._supervisor is not None
        code = self._supervisor.poll()
        if code not in (None, 0):
            raise RuntimeError(f"The run failed with status {code}; see {self.folder}.log.")
        return code == 0

    def _steps(self) -> int:
        lines = read_metrics(RunFolder(self.folder))
        return int(lines[-1]["step"]) if lines else 0

    def _progress(self) -> int:
        return self._steps() + int(self._read(_number_of_calls))

    def _total(self) -> int:
        return RunFolder(self.folder).config().trainer.steps

    def _read(self, work: Callable[[Connection | None], T]) -> T:
        folder = RunFolder(self.folder)
        if not (self.folder / self.record).exists():  # the store is not there yet
            return work(None)
        with TraceStore.open(folder.store_url()) as store:
            return store.read(work)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._supervisor is not None and self._supervisor.poll() not in (None, 0):
                raise RuntimeError(
                    f"The run ended with status {self._supervisor.poll()}; see {self.folder}.log."
                )
            if self._supervisor is not None and self._supervisor.poll() == 0 and what != "the end":
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"Waited {_PATIENCE_S:.0f} s for {what} in {self.folder}; see {self.folder}.log."
                )
            time.sleep(0.1)


def committed_calls(conn: Connection | None) -> dict[str, str]:
    """The tokens' digest of every finished call; none where there is no store yet."""
    if conn is None:
        return {}
    query = select(calls.c.id, calls.c.completion_hash).where(calls.c.status.in_(FINISHED))
    return dict(conn.execute(query).all())


def _number_of_calls(conn: Connection | None) -> int:
    query = select(func.count()).select_from(calls).where(calls.c.status.in_(FINISHED))
    return 0 if conn is None else conn.execute(query).scalar_one()


def _trained_twice(conn: Connection | None) -> int:
    assert conn is not None
    seen = [rollout for (rollout,) in conn.execute(select(trained.c.rollout_id))]
    return len(seen) - len(set(seen))


def _stalest(conn: Connection | None) -> int:
    assert conn is not None
    return int(conn.execute(select(func.max(trained.c.max_staleness))).scalar() or 0)
