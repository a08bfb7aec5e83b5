"""One run of `harnessgym rollout` under kills of its node and cuts of its connection to the engine, and what
is wrong after it.

The node is the process of the command. It gets SIGKILL at seeded moments while its rollouts are prepared, run
and graded, and the same command is given again, until all have finished. Whatever the dead node had must be
gone when the next one works.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from benchmarks.recovery import committed_calls
from benchmarks.sandbox.leaks import Inventory, Item, Place, difference, lasting
from benchmarks.sandbox.phases import PHASES, Moment, Wrong, causes, moment, wrong
from benchmarks.sandbox.witness import Witness
from benchmarks.sandbox.workload import TURNS, write_agent, write_tasks
from harnessgym.errors import StoreError
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore
from harnessgym.traces.verification.verify import verify
from tests.support.cable import Cable

STARTING, CUT = "starting", "cut"
MOMENTS = (STARTING, *PHASES)
"""At which a node is killed: starting is anything before it works, the reaping of what the last one left
included."""
_TASKS = 8
_AT_ONCE = 8
_STARTING_S = 3.0
_MOMENT_S = 0.5
"""A kill comes at most this long after its phase was seen."""
_AWAY_S = (0.5, 3.0)
"""How long the engine is away."""
_LOOK_S = 0.01
_GONE_S = 15.0
"""What a dead node had must be gone so long after its successor works."""
_PATIENCE_S = 180.0
_ENDED = (0, 1)
"""Exit statuses of a run that is done; 1 when some rollouts could not be graded."""
_TRIES = 20
T = TypeVar("T")


@dataclass
class Report:
    """What a campaign found."""

    kills: Counter[str] = field(default_factory=Counter)
    """By moment."""
    hit: Counter[str] = field(default_factory=Counter)
    """Rollouts that a kill took with it, by their phase."""
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from each kill, by moment, or from the end of each cut, to the next model call or verdict."""
    cuts: int = 0
    dropped: int = 0
    """Connections that cuts dropped."""
    gave_up: list[str] = field(default_factory=list)
    """Last words of nodes that ended by themselves, with an error, and were started again."""
    rollouts: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    """Attempts that were ended for reasons that are not the agent's, by cause."""
    calls: int = 0
    lost_calls: int = 0
    """Calls that were committed before a kill and are gone or changed."""
    wrong: Wrong = field(default_factory=Wrong)
    leaks: list[str] = field(default_factory=list)
    """What a dead node had, and the next one left."""
    for_next: list[str] = field(default_factory=list)
    """What a node left that ended in order, for the next to remove."""
    findings: list[str] = field(default_factory=list)
    """Of `traces verify`."""
    wall_s: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled, unearned, leaked or found wrong."""
        return not (self.lost_calls or self.wrong or self.leaks or self.findings)


class Campaign:
    """One run in a folder of its own, which is removed when nothing was wrong; containers that leaked are,
    in any case.
    """

    def __init__(self, sandbox: str, seed: int, *, rollouts: int = 32, tasks: int = _TASKS) -> None:
        """`rollouts` in all, of `tasks` tasks."""
        self.sandbox, self.samples, self._tasks = sandbox, rollouts // tasks, tasks
        self._draw, self.report = random.Random(seed), Report()
        self.folder = Path(tempfile.mkdtemp(prefix="hg-kills-"))
        self.place = Place(RunFolder(self.folder / "run"), self.folder / "t")
        self.place.temporary.mkdir()
        self._node: subprocess.Popen[bytes] | None = None
        self._host = ""
        self._store: TraceStore | None = None
        self._committed: dict[str, str] = {}
        self._left: set[Item] = set()
        """What dead nodes had, and no living one is known to have removed."""

    def run(self, events: Sequence[str]) -> Report:
        """Kill at each moment in turn, cut where an event says so, and go on to the end. Raises
        RuntimeError if it stops.
        """
        began = time.monotonic()
        expected = write_tasks(self.folder / "tasks", self._tasks)
        write_agent(self.folder / "agent.py")
        with self._engine() as (witness, cable):
            try:
                before = self._look(witness)
                self._play(events, witness, cable)
                self._finish(witness, before)
            finally:
                self._end()
        self._examine(expected)
        self.report.wall_s = time.monotonic() - began
        if self.report.clean:
            shutil.rmtree(self.folder)
        return self.report

    @contextmanager
    def _engine(self) -> Iterator[tuple[Witness | None, Cable | None]]:
        """Followed directly, and reached by the node through a cable; neither where there is none."""
        if self.sandbox != "docker":
            yield None, None
            return
        with (
            Witness(self.place.run.workspaces) as witness,
            Cable(self.folder / "engine.sock", witness.socket) as cable,
        ):
            self._host = f"unix://{cable.path}"
            try:
                yield witness, cable
            finally:
                self.report.dropped = cable.dropped
                witness.tidy()

    def _play(self, events: Sequence[str], witness: Witness | None, cable: Cable | None) -> None:
        self._start()
        for number, event in enumerate(events):
            if not self._reach(event):
                return
            if event == CUT:
                assert cable is not None
                self._cut(cable)
            else:
                followed = events[number + 1 : number + 2] == [STARTING]
                self._kill(event, witness, recover=not followed)

    def _reach(self, event: str) -> bool:
        """Waits for the moment of an event; False if the run ended before."""
        if event == STARTING:
            time.sleep(self._draw.uniform(0.0, _STARTING_S))
            return self._process.poll() is None
        phase = self._draw.choice(PHASES) if event == CUT else event
        there = self._wait(lambda: self._now().phases.get(phase, 0) > 0, f"a rollout that is {phase}")
        time.sleep(self._draw.uniform(0.0, _MOMENT_S))
        return there and self._process.poll() is None

    def _kill(self, event: str, witness: Witness | None, *, recover: bool) -> None:
        """SIGKILL, look what is left, start the next, and look again when it works."""
        self._committed |= self._read(committed_calls, dict[str, str]())
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        killed, before = time.monotonic(), self._now()
        self._left |= self._look(witness).items
        looked = time.monotonic() - killed
        self.report.kills[event] += 1
        self.report.hit.update(before.phases)
        self._start()
        if not recover:
            return
        self._wait(lambda: _further(before, self._now()), f"progress after a kill while {event}")
        self.report.recovery_s.setdefault(event, []).append(time.monotonic() - killed - looked)
        self._note(self._left, witness, f"left by a node that was killed while {event}")
        self._left.clear()

    def _cut(self, cable: Cable) -> None:
        cable.pull()
        self.report.cuts += 1
        time.sleep(self._draw.uniform(*_AWAY_S))
        cable.plug()
        before, plugged = self._now(), time.monotonic()
        self._wait(lambda: _further(before, self._now()), "progress after a cut")
        self.report.recovery_s.setdefault(CUT, []).append(time.monotonic() - plugged)

    def _finish(self, witness: Witness | None, before: Inventory) -> None:
        """To the end, then one more start; what there is now."""
        self._wait(lambda: False, "the end")
        left = difference(before, self._look(witness))
        self.report.for_next = [str(item) for item in lasting(left, lambda: self._look(witness), _GONE_S)]
        self._start()
        self._wait(lambda: False, "the end of one more start")
        self._note(difference(before, self._look(witness)), witness, "left after the last start")

    def _note(self, suspects: Iterable[Item], witness: Witness | None, why: str) -> None:
        left = lasting(suspects, lambda: self._look(witness), _GONE_S)
        self.report.leaks += [f"{item}: {why}" for item in left]

    def _examine(self, expected: dict[str, float]) -> None:
        """What is in the store."""
        report, results = self.report, self.place.run.root / "results.jsonl"
        with TraceStore.open(self._url) as store:
            now = store.read(committed_calls)
            report.calls, report.rollouts = len(now), store.read(moment).finished
            report.lost_calls = sum(now.get(call_id) != digest for call_id, digest in self._committed.items())
            report.wrong = store.read(lambda conn: wrong(conn, results, expected, self.samples, TURNS))
            report.causes = store.read(causes)
            report.findings = [
                f"{item.kind}: {item.where}: {item.message}" for item in verify(store, None).findings
            ]

    def _start(self) -> None:
        """The same command every time."""
        command = [sys.executable, "-m", "harnessgym", "rollout", "--tasks", str(self.folder / "tasks")]
        command += [
            "--set",
            f'argv=["python", "{self.folder / "agent.py"}"]',
            "--sandbox",
            self.sandbox,
            "-n",
            str(_AT_ONCE),
        ]
        command += [
            "--samples",
            str(self.samples),
            "--upstream",
            "scripted",
            "--folder",
            str(self.place.run.root),
        ]
        env = {
            **os.environ,
            "TMPDIR": str(self.place.temporary),
            **({"DOCKER_HOST": self._host} if self._host else {}),
        }
        with (self.folder / "log").open("ab") as log:
            self._node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def _end(self) -> None:
        if self._node is not None and self._node.poll() is None:
            self._node.terminate()
            self._node.wait(30.0)
        if self._store is not None:
            self._store.close()

    def _wait(self, condition: Callable[[], bool], what: str) -> bool:
        """Until the condition holds; False if the run ended before. A node that ended with an error is
        started again.
        """
        deadline, tries = time.monotonic() + _PATIENCE_S, 0
        while not condition():
            code = self._process.poll()
            if code in _ENDED:
                return False
            if code is not None:
                tries += 1
                self.report.gave_up.append(
                    (self.folder / "log").read_bytes()[-400:].decode(errors="replace").strip()
                )
                self._start()
            if tries > _TRIES or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Waited {_PATIENCE_S:.0f} s, or {_TRIES} starts, for {what}; see {self.folder}/log."
                )
            time.sleep(_LOOK_S)
        return True

    def _look(self, witness: Witness | None) -> Inventory:
        return Inventory.take(self.place, witness)

    def _now(self) -> Moment:
        return self._read(moment, Moment())

    def _read(self, work: Callable[[Connection], T], absent: T) -> T:
        """From the store; `absent` while there is none."""
        if self._store is None:
            try:
                self._store = TraceStore.open(self._url)
            except StoreError:
                return absent
        return self._store.read(work)

    @property
    def _url(self) -> str:
        return f"sqlite:///{self.place.run.root / 'traces.db'}"

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._node is not None
        return self._node


def _further(before: Moment, now: Moment) -> bool:
    return now.finished > before.finished or now.calls > before.calls
