"""Tasks checked: the solution must be rewarded each time, doing nothing never, and no cheat may get anything.

What is found goes into the set's baseline as it comes, so that an interrupted check goes on where it stood.
First every task is run with its solution and with nothing, then cheats are tried on those that passed: what
cheats do to a machine would otherwise be counted against the solutions that are run beside them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from harnessgym.grading.cheats.cheat import Cheat
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent
from harnessgym.grading.cheats.suite import CheatSuite, missing, suite
from harnessgym.sandbox import SandboxBackend
from harnessgym.task import Task
from harnessgym.validation.baseline import Baseline, BaselineEntry, Outcome, digest_of

GOLD = "gold"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What is run on each task."""

    sandbox: str
    """What the backend is called."""
    repeats: int = 3
    """Times that the solution is run."""
    cheats: tuple[Cheat, ...] = ()
    again: bool = False
    """Whether what is in the baseline already is run again."""


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """What is known of one task at the end."""

    task: str
    state: Literal["passed", "failed", "no solution", "skipped", "no answer"]
    """skipped: this backend cannot take it. no answer: sandboxes failed, twice; that says nothing about
    the task."""
    why: tuple[str, ...] = ()
    entry: BaselineEntry | None = None
    """What is in the baseline; None if nothing could be found out."""
    ran: int = 0
    """Times that something was run; 0 if all was in the baseline."""
    seconds: float = 0.0


@dataclass(slots=True)
class Progress:
    """A check at one moment."""

    runs: int
    """Of all that is to be run, solutions, nothing and cheats together; tasks that fail need fewer in the
    end."""
    done: int = 0
    tasks: int = 0
    """That something is run on."""
    finished: int = 0
    began: float = field(default_factory=time.monotonic)
    doing: str = ""

    @property
    def tasks_per_minute(self) -> float:
        """Since the beginning, a task that is half done being half a task."""
        part = self.done / self.runs if self.runs else 1.0
        return 60.0 * self.tasks * part / max(time.monotonic() - self.began, 1e-9)

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at the speed so far; None before there is one."""
        spent = time.monotonic() - self.began
        return (self.runs - self.done) * spent / self.done if self.done else None


Observer = Callable[[Progress], None]


class TaskSetCheck:
    """One check of a set's tasks in a backend that is not open yet: it is opened if there is something to
    run.
    """

    def __init__(
        self, backend: SandboxBackend, book: Baseline, wanted: CheckPlan, observe: Observer = lambda _: None
    ) -> None:
        self._backend = backend
        self._book = book
        self._wanted = wanted
        self._observe = observe
        self._stand_in = ScriptedAgent(backend)
        self._suite: CheatSuite | None = None
        self._progress = Progress(0)

    async def run(self, tasks: Sequence[Task], jobs: int) -> list[CheckedTask]:
        """Checks so many at one time. What is found is in the baseline when this returns, or is cancelled."""
        wanted = self._wanted
        files = [_File(task, self._book.of(task), wanted) for task in tasks]
        for file in files:
            if lacking := missing(file.task, self._backend):
                file.stop("skipped", f"The {wanted.sandbox} sandbox lacks {lacking}.")
        left = [file for file in files if file.left]
        self._progress = Progress(sum(file.left for file in left), tasks=len(left))
        if left:
            async with self._backend, self._cheating() as self._suite:
                await self._all(left, jobs)
        return [file.checked() for file in files]

    def _cheating(self) -> AbstractAsyncContextManager[CheatSuite | None]:
        """What cheats need around them, if any are wanted."""
        return suite(self._backend) if self._wanted.cheats else nullcontext()

    async def _all(self, files: "Sequence[_File]", jobs: int) -> None:
        self._observe(self._progress)
        try:
            await _at_once(jobs, (self._controls(file) for file in files))
            await _at_once(jobs, (self._cheats(file) for file in files))
        finally:
            self._book.flush()

    async def _controls(self, file: "_File") -> None:
        """The solution as often as it takes, and nothing."""
        task = file.task
        while not file.stopped and file.gold_left:
            await self._one(file, GOLD, partial(self._stand_in.gold, task))
        if not file.stopped and file.nothing_left:
            await self._one(file, NOTHING, partial(self._stand_in.nothing, task))
        if not file.stopped:
            self._book.put(task.id, file.entry)

    async def _cheats(self, file: "_File") -> None:
        for cheat in file.cheats_left():
            assert self._suite is not None
            await self._one(file, cheat.name, partial(self._suite.cheat, file.task, cheat))
            if file.stopped:
                break
            self._book.put(file.task.id, file.entry)
        self._progress.finished += 1
        self._progress.runs -= file.left
        file.left = 0
        self._observe(self._progress)

    async def _one(self, file: "_File", what: str, run: Callable[[], Awaitable[CheatResult | None]]) -> None:
        """Runs something, once more if a sandbox failed, and writes down what it came to."""
        self._progress.doing = f"{file.task.id}: {what}"
        self._observe(self._progress)
        result = await run()
        if result is not None and result.lost:
            result = await run()
        file.left -= 1
        self._progress.done += 1
        if result is None:
            file.note_unfit(what)
            return
        file.seconds += result.seconds
        file.ran += 1
        if result.unusable or result.lost:
            file.stop("skipped" if result.unusable else "no answer", f"{what}: {result.error}")
        else:
            file.note(what, result)


class _File:
    """What is known of one task, growing."""

    def __init__(self, task: Task, known: BaselineEntry | None, wanted: CheckPlan) -> None:
        self.task = task
        self.wanted = wanted
        if known is not None and known.sandbox != wanted.sandbox:
            known = None
        if known is not None and wanted.again:
            known = _without(known, {GOLD, NOTHING, *(cheat.name for cheat in wanted.cheats)})
        self.entry = known or BaselineEntry(
            digest=digest_of(task), state="no solution", sandbox=wanted.sandbox
        )
        self.ran = 0
        self.seconds = 0.0
        self._stop: tuple[Literal["skipped", "no answer"], str] | None = None
        self.left = self.gold_left + self.nothing_left + len(self.cheats_left())
        """Times that something is still to be run, as far as can be told."""

    @property
    def gold_left(self) -> int:
        """Times that the solution is still to be run."""
        return max(0, self.wanted.repeats - len(self.entry.gold)) if has_gold(self.task) else 0

    @property
    def nothing_left(self) -> int:
        """1 if nothing is still to be done."""
        return int(self.entry.nothing is None)

    @property
    def stopped(self) -> bool:
        """Whether no more is run."""
        return self._stop is not None

    def cheats_left(self) -> list[Cheat]:
        """Those still to be tried: none on a task that failed without them."""
        if self.stopped or not {GOLD, NOTHING}.isdisjoint(self.entry.problems):
            return []
        return [cheat for cheat in self.wanted.cheats if cheat.name not in self.entry.cheats]

    def stop(self, state: Literal["skipped", "no answer"], why: str) -> None:
        """Nothing more can be found out."""
        self._stop = state, why
        self.left = 0

    def note_unfit(self, cheat: str) -> None:
        """A cheat has nothing to try on this task."""
        self.entry = self.entry.model_copy(update={"cheats": {**self.entry.cheats, cheat: "does not apply"}})

    def note(self, what: str, result: CheatResult) -> None:
        """Takes what a run came to into the entry."""
        outcome = _outcome(result)
        changes: dict[str, object] = {}
        if what == GOLD:
            gold = (*self.entry.gold, outcome)
            changes = {"gold": gold, "expected_flaky": len(set(gold)) > 1}
        elif what == NOTHING:
            changes = {"nothing": outcome}
        else:
            changes = {"cheats": {**self.entry.cheats, what: outcome if result.holds else "got something"}}
        entry = self.entry.model_copy(update=changes)
        problems = {key: said for key, said in entry.problems.items() if key != what} | _problem(
            what, result, entry
        )
        state = "failed" if problems else "passed" if has_gold(self.task) else "no solution"
        self.entry = entry.model_copy(update={"problems": problems, "state": state})

    def checked(self) -> CheckedTask:
        """The end of it."""
        known = self.entry if self.entry.nothing is not None else None
        end = CheckedTask(
            self.task.id, self.entry.state, tuple(self.entry.problems.values()), known, self.ran, self.seconds
        )
        return end if self._stop is None else replace(end, state=self._stop[0], why=(self._stop[1], *end.why))


def has_gold(task: Task) -> bool:
    """Whether a task comes with a solution; one of several steps, with one for each."""
    return (
        task.solution is not None if not task.steps else all(step.solution is not None for step in task.steps)
    )


def _without(entry: BaselineEntry, names: set[str]) -> BaselineEntry:
    """An entry as if what has these names had never been run."""
    cheats = {name: outcome for name, outcome in entry.cheats.items() if name not in names}
    problems = {name: said for name, said in entry.problems.items() if name not in names}
    changes = {"gold": (), "expected_flaky": False, "nothing": None, "cheats": cheats, "problems": problems}
    return entry.model_copy(update=changes)


def _outcome(result: CheatResult) -> Outcome:
    if result.tampered is not None:
        return "tampered"
    return "error" if result.reward is None else result.reward


def _problem(what: str, result: CheatResult, entry: BaselineEntry) -> dict[str, str]:
    """A sentence if it is not as it should be."""
    if what == GOLD:
        good = sum(each == 1.0 for each in entry.gold)
        if good == len(entry.gold):
            return {}
        before = entry.problems.get(GOLD, "").partition(": ")[2]
        last = before or _said(result)
        how = (
            f"was rewarded in {good} of {len(entry.gold)} runs"
            if good
            else f"was never rewarded ({len(entry.gold)} runs)"
        )
        return {GOLD: f"The solution {how}: {last}"}
    if what == NOTHING:
        return {} if result.holds else {NOTHING: f"Doing nothing {_said(result)}"}
    if result.holds:
        return {}
    loot = f" and got {' '.join(result.loot.split())[:300]}" if result.loot else ""
    return {what: f"The cheat {what} {_said(result)}{loot}"}


def _said(result: CheatResult) -> str:
    if result.tampered is not None:
        return f"was called tampered with: {result.tampered}"
    if result.reward is None:
        return f"got no verdict: {result.error}"
    detail = "" if result.reward == 1.0 else _failing(result.evidence.get("checks"))
    return f"scored {result.reward:g}{detail}"


def _failing(checks: object) -> str:
    """What the first check that failed said, where the evidence is a list of checks."""
    for each in checks if isinstance(checks, list) else ():
        if isinstance(each, Mapping) and not each.get("passed") and each.get("detail"):
            return f" ({' '.join(str(each['detail']).split())[:300]})"
    return ""


async def _at_once(jobs: int, work: Iterator[Awaitable[None]]) -> None:
    """Awaits all of it, so much at one time. The first error ends the rest."""

    async def worker() -> None:
        for each in work:
            await each

    workers = [asyncio.create_task(worker()) for _ in range(jobs)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
