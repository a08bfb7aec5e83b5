"""Checks tasks: the solution must always get the reward, doing nothing never, and no cheat may get anything.
Nor may an agent find the solution or the tests in what its sandbox shows of this machine or of the image.
A task that is judged by value must show its fault with every seed of fresh inputs, without any other check.

Results go into the set's baseline at once, so an interrupted check resumes where it stopped. Every task
first runs with its solution and with nothing. Then cheats are tried on the tasks that passed. Otherwise the
harm that cheats do to a machine could fail the solutions that run at the same time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from harnessgym.grading.by_value.judge import is_judged_by_value
from harnessgym.grading.cheats.cheat import Cheat
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent
from harnessgym.grading.cheats.suite import CheatSuite, missing, suite
from harnessgym.sandbox import Capability, SandboxBackend
from harnessgym.task import Task
from harnessgym.validation.baseline import Baseline, BaselineEntry, Outcome, digest_of
from harnessgym.validation.leaks import Leak, leaks
from harnessgym.validation.value_control import known_integrity, value_control, value_weakness, with_seed

BY_VALUE = "by_value"
GOLD = "gold"
LEAKED = "leaked"
NOTHING = "nothing"


_LEAKS = 5
"""Most leaks of a task that are named."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What to run on each task."""

    sandbox: str
    """Name of the backend."""
    repeats: int = 3
    """How often to run the solution."""
    cheats: tuple[Cheat, ...] = ()
    seeds: int = 3
    """Seeds of fresh inputs with which the initial files are judged by value."""
    second_opinion: bool = False
    """Whether that is also tried with tasks that do not ask to be judged by value but have a solution."""
    again: bool = False
    """Whether to repeat runs whose results are in the baseline."""


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """The result for one task."""

    task: str
    state: Literal["passed", "failed", "no solution", "skipped", "no answer"]
    """skipped: this backend cannot run it. no answer: sandboxes failed twice, which says nothing about the
    task."""
    why: tuple[str, ...] = ()
    entry: BaselineEntry | None = None
    """Its entry in the baseline; None if there is no result."""
    ran: int = 0
    """Number of runs; 0 if all results were in the baseline."""
    seconds: float = 0.0


@dataclass(slots=True)
class Progress:
    """The progress of a check."""

    runs: int
    """Planned runs: solutions, nothing, by value, and cheats. Tasks that fail need fewer."""
    done: int = 0
    tasks: int = 0
    """Tasks that have any run."""
    finished: int = 0
    began: float = field(default_factory=time.monotonic)
    doing: str = ""

    @property
    def tasks_per_minute(self) -> float:
        """Average since the start. A task that is half done counts as half a task."""
        part = self.done / self.runs if self.runs else 1.0
        return 60.0 * self.tasks * part / max(time.monotonic() - self.began, 1e-9)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the average speed; None before the first run is done."""
        spent = time.monotonic() - self.began
        return (self.runs - self.done) * spent / self.done if self.done else None


Observer = Callable[[Progress], None]


class TaskSetCheck:
    """One check of a set's tasks. The backend must not be open; it is opened if there is something to run."""

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
        """Checks `jobs` tasks at once. All results are in the baseline when this returns or is cancelled."""
        wanted = self._wanted
        files = [_File(task, self._book.of(task), wanted) for task in tasks]
        for file in files:
            if lacking := missing(file.task, self._backend):
                file.stop("skipped", f"The {wanted.sandbox} sandbox lacks {lacking}.")
        left = [file for file in files if file.left]
        self._progress = Progress(sum(file.left for file in left), tasks=len(left))
        searched = [file for file in files if self._is_searched(file)]
        if left or searched:
            async with self._backend, self._cheating() as self._suite:
                await self._search(searched)
                await self._all(left, jobs)
        return [file.checked() for file in files]

    def _is_searched(self, file: "_File") -> bool:
        """Whether leaks are looked for. What this machine shows may change at any time; an image does not.

        Where nothing keeps an agent from this machine's files, everything leaks.
        """
        apart = Capability.FILES in self._backend.capabilities
        return apart and not file.stopped and bool(file.left or not file.task.image)

    async def _search(self, searched: "Sequence[_File]") -> None:
        """Records what can be read of tasks' solutions and tests in a fresh sandbox."""
        self._progress.doing = "what an agent can read"
        self._observe(self._progress)
        found = await leaks(self._backend, [file.task for file in searched])
        for file in searched:
            file.note_leaks(found.get(file.task.id, ()))
            if file.entry.nothing is not None:
                self._book.put(file.task.id, file.entry)

    def _cheating(self) -> AbstractAsyncContextManager[CheatSuite | None]:
        """The cheat suite, if any cheats are planned."""
        return suite(self._backend) if self._wanted.cheats else nullcontext()

    async def _all(self, files: "Sequence[_File]", jobs: int) -> None:
        self._observe(self._progress)
        try:
            await _at_once(jobs, (self._controls(file) for file in files))
            await _at_once(jobs, (self._cheats(file) for file in files))
        finally:
            self._book.flush()

    async def _controls(self, file: "_File") -> None:
        """Runs the solution as often as needed, doing nothing, and doing nothing judged by value alone."""
        task = file.task
        while not file.stopped and file.gold_left:
            await self._one(file, GOLD, partial(self._stand_in.gold, task))
        if not file.stopped and file.nothing_left:
            await self._one(file, NOTHING, partial(self._stand_in.nothing, task))
        while not file.stopped and file.seeds_left:
            number = len(file.entry.by_value or ())
            await self._one(file, BY_VALUE, partial(value_control, self._stand_in, task, number))
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
        """Runs something and records the result. Tries once more if a sandbox failed."""
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
    """The results for one task while it is checked."""

    def __init__(self, task: Task, known: BaselineEntry | None, wanted: CheckPlan) -> None:
        self.task = task
        self.wanted = wanted
        if known is not None and known.sandbox != wanted.sandbox:
            known = None
        if known is not None and wanted.again:
            values = {BY_VALUE} if _has_value_control(task, wanted) else set()
            known = _without(known, {GOLD, NOTHING, *values, *(cheat.name for cheat in wanted.cheats)})
        entry = known or BaselineEntry(digest=digest_of(task), state="no solution", sandbox=wanted.sandbox)
        self.entry = entry.model_copy(update={"integrity": known_integrity(task)})
        self.ran = 0
        self.seconds = 0.0
        self._stop: tuple[Literal["skipped", "no answer"], str] | None = None
        self.left = self.gold_left + self.nothing_left + self.seeds_left + len(self.cheats_left())
        """Runs that are left, by what is known so far."""

    @property
    def gold_left(self) -> int:
        """Runs of the solution that are left."""
        return max(0, self.wanted.repeats - len(self.entry.gold)) if has_gold(self.task) else 0

    @property
    def nothing_left(self) -> int:
        """1 if doing nothing is still to be run, else 0."""
        return int(self.entry.nothing is None)

    @property
    def seeds_left(self) -> int:
        """Seeds that are left: none if the task failed without them or cannot be judged by value."""
        known = () if self.entry.by_value is None else self.entry.by_value
        if isinstance(known, str) or not _has_value_control(self.task, self.wanted):
            return 0
        failed = not {GOLD, NOTHING}.isdisjoint(self.entry.problems)
        return 0 if failed else max(0, self.wanted.seeds - len(known))

    @property
    def stopped(self) -> bool:
        """Whether the check of this task has stopped."""
        return self._stop is not None

    def cheats_left(self) -> list[Cheat]:
        """The cheats that are left: none if the task failed without them."""
        if self.stopped or not {GOLD, NOTHING, BY_VALUE}.isdisjoint(self.entry.problems):
            return []
        return [cheat for cheat in self.wanted.cheats if cheat.name not in self.entry.cheats]

    def stop(self, state: Literal["skipped", "no answer"], why: str) -> None:
        """Ends the check of this task without a result."""
        self._stop = state, why
        self.left = 0

    def note_unfit(self, cheat: str) -> None:
        """Records that a cheat does not apply to this task."""
        self.entry = self.entry.model_copy(update={"cheats": {**self.entry.cheats, cheat: "does not apply"}})

    def note(self, what: str, result: CheatResult) -> None:
        """Adds the result of a run to the entry."""
        outcome = _outcome(result)
        changes: dict[str, object] = {}
        if what == GOLD:
            gold = (*self.entry.gold, outcome)
            changes = {"gold": gold, "expected_flaky": len(set(gold)) > 1}
        elif what == NOTHING:
            changes = {"nothing": outcome}
        elif what == BY_VALUE:
            changes = {"by_value": with_seed(self.entry.by_value, result)}
        else:
            changes = {"cheats": {**self.entry.cheats, what: outcome if result.holds else "got something"}}
        entry = self.entry.model_copy(update=changes)
        problem = self._value_problem(entry) if what == BY_VALUE else _problem(what, result, entry)
        self._set(entry, {key: text for key, text in entry.problems.items() if key != what} | problem)

    def _value_problem(self, entry: BaselineEntry) -> dict[str, str]:
        """Only a task that asks to be judged by value fails if that does not show its fault."""
        weakness = value_weakness(entry) if is_judged_by_value(self.task) else ""
        return {BY_VALUE: weakness} if weakness else {}

    def note_leaks(self, leaks: Sequence[Leak]) -> None:
        """Records where an agent can read the solution or the tests; replaces what was recorded before."""
        problems = {key: problem for key, problem in self.entry.problems.items() if key != LEAKED}
        if leaks:
            shown = "; ".join(map(str, leaks[:_LEAKS])) + f" and {len(leaks) - _LEAKS} more" * (
                len(leaks) > _LEAKS
            )
            problems[LEAKED] = f"It can be read in an agent's sandbox: {shown}"
        if problems != self.entry.problems:
            self._set(self.entry, problems)

    def _set(self, entry: BaselineEntry, problems: dict[str, str]) -> None:
        state = "failed" if problems else "passed" if has_gold(self.task) else "no solution"
        self.entry = entry.model_copy(update={"problems": problems, "state": state})

    def checked(self) -> CheckedTask:
        """The result for this task."""
        known = self.entry if self.entry.nothing is not None else None
        end = CheckedTask(
            self.task.id, self.entry.state, tuple(self.entry.problems.values()), known, self.ran, self.seconds
        )
        return end if self._stop is None else replace(end, state=self._stop[0], why=(self._stop[1], *end.why))


def has_gold(task: Task) -> bool:
    """Whether a task has a solution; a task of several steps needs one for each."""
    return (
        task.solution is not None if not task.steps else all(step.solution is not None for step in task.steps)
    )


def _has_value_control(task: Task, wanted: CheckPlan) -> bool:
    return is_judged_by_value(task) or (wanted.second_opinion and has_gold(task))


def _without(entry: BaselineEntry, names: set[str]) -> BaselineEntry:
    """An entry without the results of the runs with these names."""
    cheats = {name: outcome for name, outcome in entry.cheats.items() if name not in names}
    problems = {name: problem for name, problem in entry.problems.items() if name not in names}
    changes = {"gold": (), "expected_flaky": False, "nothing": None, "cheats": cheats, "problems": problems}
    return entry.model_copy(update=changes | ({"by_value": None} if BY_VALUE in names else {}))


def _outcome(result: CheatResult) -> Outcome:
    if result.tampered is not None:
        return "tampered"
    return "error" if result.reward is None else result.reward


def _problem(what: str, result: CheatResult, entry: BaselineEntry) -> dict[str, str]:
    """The name and a sentence if the result is wrong, else nothing."""
    if what == GOLD:
        good = sum(each == 1.0 for each in entry.gold)
        if good == len(entry.gold):
            return {}
        # Keep the first failure's reason: later runs may pass, and their result would explain nothing.
        before = entry.problems.get(GOLD, "").partition(": ")[2]
        last = before or _describe_cheat(result)
        how = (
            f"was rewarded in {good} of {len(entry.gold)} runs"
            if good
            else f"was never rewarded ({len(entry.gold)} runs)"
        )
        return {GOLD: f"The solution {how}: {last}"}
    if what == NOTHING:
        return {} if result.holds else {NOTHING: f"Doing nothing {_describe_cheat(result)}"}
    if result.holds:
        return {}
    loot = f" and got {' '.join(result.loot.split())[:300]}" if result.loot else ""
    return {what: f"The cheat {what} {_describe_cheat(result)}{loot}"}


def _describe_cheat(result: CheatResult) -> str:
    if result.tampered is not None:
        return f"was called tampered with: {result.tampered}"
    if result.reward is None:
        return f"got no verdict: {result.error}"
    detail = "" if result.reward == 1.0 else _failing(result.evidence.get("checks"))
    return f"scored {result.reward:g}{detail}"


def _failing(checks: object) -> str:
    """The detail of the first failed check, if the evidence is a list of checks."""
    for each in checks if isinstance(checks, list) else ():
        if isinstance(each, Mapping) and not each.get("passed") and each.get("detail"):
            return f" ({' '.join(str(each['detail']).split())[:300]})"
    return ""


async def _at_once(jobs: int, work: Iterator[Awaitable[None]]) -> None:
    """Awaits all of `work`, `jobs` at once. The first error cancels the rest."""

    # All workers share one iterator, so each takes the next item when it is free.
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
