"""Kill and stop processes of a training run, over and over, and check that nothing is lost, doubled or
misjudged.

One *campaign* is one run of the quickstart's task with a schedule of blows. A process is killed (SIGKILL),
stopped (SIGSTOP) until the run replaces it, or stopped for a moment (SIGSTOP, then SIGCONT). Before each blow
the committed calls are noted. At the end every one of them must still be there unchanged, every step trained
once, every graded rollout rewarded for what its record says it answered, and `traces verify` green.
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
from typing import ClassVar, Literal, TypeVar

from sqlalchemy import Connection, func, select
from tokenizers import Tokenizer

from environments.lookup.tasks import LookupTasks
from harnessgym.outcome.failure import StopReason
from harnessgym.process import ProcessId, identify
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, rollouts, runs, tables
from harnessgym.store import calls as call_rows
from harnessgym.store.calls import FINISHED
from harnessgym.store.tables import calls, rewards, sessions, tasks, trained
from harnessgym.supervisor.progress import read_metrics
from harnessgym.traces.verification.verify import verify

VICTIMS = ("proxy", "engine", "node", "trainer", "supervisor")
"""Kinds of process. Of the engines, one is picked at random each time."""
How = Literal["kill", "stop", "pause"]
HANGS: tuple[How, ...] = ("stop", "pause")
SILENT_S = 8.0
"""`supervisor.silent_s` of the runs: for so long a process is stopped before it is replaced."""
_SHORTEST_S, _LONGEST_S = 0.3, 2.0
"""Of a stop from which the process goes on by itself."""
_PATIENCE_S = 240.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing that is done to a process of a run."""

    victim: str
    how: How = "kill"


@dataclass
class Report:
    """What a campaign found."""

    blows: dict[str, dict[str, int]] = field(default_factory=dict)
    """By victim, and by how it was struck."""
    recovery_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By the same: seconds from each blow to the run's next committed call or training step, whoever makes
    it."""
    next_step_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By the same: seconds from each blow to the next training step."""
    calls: int = 0
    lost: int = 0
    """Calls that were committed before a blow and are gone or changed."""
    trained_twice: int = 0
    findings: list[str] = field(default_factory=list)
    """What `traces verify` says."""
    stop_reasons: dict[str, int] = field(default_factory=dict)
    """How all attempts at rollouts ended."""
    graded: int = 0
    judged: int = 0
    """Of the graded rollouts, those that did not end well by themselves: nothing but a blow makes these
    harnesses fail."""
    misjudged: int = 0
    """Of the graded rollouts, those whose reward is not that of the last answer in their record."""
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
        """Whether nothing was lost, doubled, too stale, found wrong, or judged for a blow."""
        wrong = self.lost or self.trained_twice or self.findings or self.judged or self.misjudged
        return not wrong and self.staleness <= self.eta

    def note(self, blow: Blow, recovery_s: float, next_step_s: float | None) -> None:
        """Count a blow that the run has survived."""
        counts = self.blows.setdefault(blow.victim, {})
        counts[blow.how] = counts.get(blow.how, 0) + 1
        self.recovery_s.setdefault(blow.victim, {}).setdefault(blow.how, []).append(recovery_s)
        if next_step_s is not None:
            self.next_step_s.setdefault(blow.victim, {}).setdefault(blow.how, []).append(next_step_s)


@dataclass
class Campaign:
    """One run and the blows in it. `blows[i]` falls at a random moment of training step i + 1 or later."""

    folder: Path
    blows: Sequence[Blow]
    seed: int
    overrides: Sequence[str] = ()
    command: ClassVar[str] = "train"
    silent_s: ClassVar[float] = SILENT_S
    to_the_end: ClassVar[bool] = True
    """Whether the run goes on to its end after the last blow; otherwise it is interrupted there."""
    record: ClassVar[str] = "processes.json"
    """File of the run's folder that is written once processes run."""
    _committed: dict[str, str] = field(default_factory=dict)
    _supervisor: subprocess.Popen[bytes] | None = None
    _store: TraceStore | None = None

    def run(self) -> Report:
        """Run to the end. Raises `RuntimeError` if the run stops making progress or fails."""
        draw, report, began = random.Random(self.seed), Report(), time.monotonic()
        try:
            self._start()
            for step, blow in enumerate(self.blows):
                self._wait(partial(self._begun, step), f"step {step}")
                self._await_moment(draw)
                if self._steps() >= self._total():
                    break
                victim = draw.choice(("engine-0", "engine-1")) if blow.victim == "engine" else blow.victim
                self._deal(blow, victim, draw, report)
            if self.to_the_end:
                self._wait(self._finished, "the end")
        finally:
            self._end()
            self._close_store()
        self._examine(report)
        self._close_store()
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
        settings = ["--evaluation.tasks", "0", "--supervisor.max_restarts", "1000"]
        settings += ["--supervisor.silent_s", str(self.silent_s), *self.overrides]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._supervisor = subprocess.Popen([*command, *settings], stdout=log, stderr=log)

    def _end(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._supervisor.wait(timeout=20)

    def _begun(self, step: int) -> bool:
        return self._steps() >= step and self._progress() > 0

    def _await_moment(self, draw: random.Random) -> None:
        """Wait for the moment of the next blow."""
        time.sleep(draw.uniform(0.0, 1.2))

    def _deal(self, blow: Blow, victim: str, draw: random.Random, report: Report) -> None:
        self._wait(lambda: self._runs(victim), f"a running {victim}")
        self._committed |= self._read(committed_calls)
        steps, struck = self._steps(), time.monotonic()
        if not self._strike(victim, blow.how, draw):
            return
        before = self._progress()
        if blow.how == "kill":
            self._revive(victim)
        self._wait(lambda: self._progress() > before, f"progress after {victim} met a {blow.how}")
        recovery_s = time.monotonic() - struck
        self._wait(lambda: self._steps() > steps, f"a step after {victim} met a {blow.how}")
        report.note(blow, recovery_s, time.monotonic() - struck)
        self._settle(victim, struck)

    def _runs(self, victim: str) -> bool:
        """Whether it is there to be struck."""
        return self._process(victim) is not None

    def _strike(self, victim: str, how: How, draw: random.Random) -> bool:
        """Kill it, or stop it for a while. False if the victim is gone by itself."""
        process = self._process(victim)
        if process is None:
            return False
        if how == "kill":
            process.signal(signal.SIGKILL)
            return True
        process.signal(signal.SIGSTOP)
        if how == "pause":
            time.sleep(draw.uniform(_SHORTEST_S, _LONGEST_S))
        else:
            self._outlast(victim, process)
        process.signal(signal.SIGCONT)
        return True

    def _outlast(self, victim: str, process: ProcessId) -> None:
        """Leave a process stopped for longer than every limit: until the run has replaced it, if it can."""
        if victim == "supervisor":
            time.sleep(SILENT_S + 2)
        else:
            self._wait(lambda: not process.alive(), f"the end of {victim}, which is stopped")

    def _revive(self, victim: str) -> None:
        """Start again what was killed and nobody else starts again."""
        if victim == "supervisor":
            assert self._supervisor is not None
            self._supervisor.wait()
            self._start()

    def _settle(self, victim: str, struck: float) -> None:
        """Wait until all is as it was before a blow; by default nothing more is waited for than the next
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
            report.stop_reasons = store.read(lambda conn: runs.stop_reasons(conn, run.id))
            report.failed_rollouts = store.read(lambda conn: rollouts.rollout_states(conn, run.id)).get(
                "failed", 0
            )
            graded = store.read(partial(graded_lookups, tokenizer=self._tokenizer()))
        report.graded = len(graded)
        report.judged = sum(each.stop_reason != StopReason.FINISHED for each in graded)
        report.misjudged = sum(each.reward != each.deserved for each in graded)

    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(Path(RunFolder(self.folder).config().policy.path) / "tokenizer.json"))

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
        if not (self.folder / self.record).exists():  # the store is not there yet
            return work(None)
        self._store = self._store or TraceStore.open(RunFolder(self.folder).store_url())
        return self._store.read(work)

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

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


@dataclass(frozen=True, slots=True)
class GradedLookup:
    """A rollout of the quickstart's task that was graded."""

    rollout_id: str
    stop_reason: str
    reward: float
    deserved: float
    """What its record says that it deserves: whether the policy's last answer is the value that was asked
    for."""


def graded_lookups(conn: Connection, tokenizer: Tokenizer) -> list[GradedLookup]:
    """All graded rollouts of a run of the lookup task."""
    answers = {
        task.id: task.metadata["answer"] for split in ("train", "test") for task in LookupTasks().tasks(split)
    }
    own = rewards.c.channel == "reward"
    columns = (
        tables.rollouts.c.id,
        tasks.c.key,
        tables.rollouts.c.stop_reason,
        rewards.c.value,
        sessions.c.id,
    )
    query = select(*columns).join(tasks, tasks.c.id == tables.rollouts.c.task_id)
    query = query.join(rewards, rewards.c.rollout_id == tables.rollouts.c.id)
    query = query.join(sessions, sessions.c.rollout_id == tables.rollouts.c.id)
    graded = []
    for rollout_id, key, reason, reward, session_id in conn.execute(query.where(own)):
        deserved = float(_last_answer(conn, session_id, tokenizer).strip() == answers[key])
        graded.append(GradedLookup(rollout_id, reason, reward, deserved))
    return graded


def _last_answer(conn: Connection, session_id: str, tokenizer: Tokenizer) -> str:
    """The text of the last call of a session that was answered."""
    answered = [call for call in call_rows.of_sessions(conn, [session_id]) if call.status in FINISHED]
    if not answered:
        return ""
    segment = answered[-1].completion_segment
    assert segment is not None
    ids = call_rows.segments_of(conn, [session_id])[segment].ids
    return str(tokenizer.decode([int(token) for token in ids]))


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
