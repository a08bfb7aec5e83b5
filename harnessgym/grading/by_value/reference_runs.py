"""What gold and the control answer to the inputs of one draw, and whether that tells right from wrong."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import anyio.to_thread

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.by_value.lookup import LookupControl, twin_of, with_twins
from harnessgym.grading.by_value.observation import (
    ObservedRun,
    TestObservation,
    ValueDifference,
    differences,
    differing_groups,
    stable,
)
from harnessgym.grading.by_value.plan import observe
from harnessgym.grading.verifier import Opener

_CONTROL = 16
"""Variants that the control runs. It runs the others only if these do not show the fault."""
_CONFIRMED = 2
"""Variants that it runs again if these are not answered. With their twins, more would end at the limit of
tests that hang, behind which none runs."""
RunName = Literal[
    "gold", "gold alone", "gold again", "control", "control alone", "more control", "more control alone"
]
_CONTROL_RUNS: tuple[tuple[RunName, RunName], ...] = (
    ("control", "control alone"),
    ("more control", "more control alone"),
)


@dataclass(frozen=True, slots=True)
class ControlContrast:
    """How a run of the control differs from gold, by test id."""

    shown: tuple[str, ...]
    """Tests with an assertion to which the control gives other values, with the table and without."""
    unanswered: tuple[str, ...]
    """Tests that differ in that the control, with the table or without, did not answer them."""


def contrast_of(expected: Mapping[str, TestObservation], control: ObservedRun) -> ControlContrast:
    """Compares a run of the control, which has twins, with gold."""
    shown: list[str] = []
    unanswered: list[str] = []
    for difference in differences(expected, control.tests):
        # Where the faulty code is right and the table is not, a better table would leave it alone.
        test, twin = difference.test, twin_of(difference.test)
        wrong = [differing_groups(expected[test], control.tests.get(each)) for each in (test, twin)]
        if wrong[0] & wrong[1]:
            answered = all(_is_answered(control, each) for each in (test, twin))
            (shown if answered else unanswered).append(test)
    return ControlContrast(tuple(shown), tuple(unanswered))


def _is_answered(run: ObservedRun, test: str) -> bool:
    """A test that is missing in a whole run is not in its file: the file cannot be imported."""
    return not run.tests[test].broken if test in run.tests else run.ended


class ReferenceRuns:
    """The answers of gold and of the control to the inputs of one draw. Each run is made once."""

    def __init__(
        self, job: Mapping[str, Any], open_gold: Opener, open_control: Opener, control: LookupControl
    ) -> None:
        # Variants on which the control is as strong as it could be. Those of tests that show the fault come
        # first, and fresh calls, which are in no table, last.
        counted = [file for file, tests in job["tests"].items() if control.counts(tests)]
        first = list(dict.fromkeys([*counted[:_CONTROL], *counted[-1:]]))
        more = [file for file in counted if file not in first]
        self._asked: dict[RunName, tuple[Opener, Mapping[str, Any]]] = {
            "gold": (open_gold, job),
            "gold again": (open_gold, job),
            "control": (open_control, with_twins(job, first)),
            "more control": (open_control, with_twins(job, more)),
        }
        self.table = control.strong
        """Whether the control has a table that answers tests with their own inputs."""
        self._done: dict[RunName, ObservedRun] = {}
        self._running = {name: asyncio.Lock() for name in get_args(RunName)}

    async def run(self, name: RunName) -> ObservedRun:
        """A run by name. `gold again` has the same inputs as `gold`, `control` the first of them, `more
        control` the others; those `alone` have what the run before did not answer.

        Raises SandboxError when a sandbox failed.
        """
        async with self._running[name]:
            if name not in self._done:
                open_sandbox, job = self._asked[name]
                self._done[name] = await observe(open_sandbox, job, is_gold=name.startswith("gold"))
        return self._done[name]

    async def gold(self) -> ObservedRun:
        """What gold observed. Tests that did not end in time run once more: call this when the candidate has
        ended. One that takes the processor from gold would else choose what it is compared with.

        Raises SandboxError when a sandbox failed, or if gold's tests time out, which says nothing about them;
        TaskError if gold's answers are not known.
        """
        gold = await self.run("gold")
        if late := self._late(gold):
            open_gold, job = self._asked["gold"]
            tests = {file: wanted for file, wanted in job["tests"].items() if file in late}
            self._asked["gold alone"] = (open_gold, {**job, "tests": tests})
            alone = await self.run("gold alone")
            gold = replace(alone, tests={**gold.tests, **alone.tests})
        self._check(gold)
        return gold

    async def gold_twice(self) -> dict[str, TestObservation]:
        """What gold observed twice in the same way. Raises like `gold`."""
        first, second = await self.gold(), await self.run("gold again")
        self._check(second)
        return await anyio.to_thread.run_sync(stable, first, second)

    async def shown(self, expected: Mapping[str, TestObservation]) -> int:
        """The number of tests whose values differ from gold's on the initial files, with the table and
        without. Call this when the candidate has ended.

        What the control does not answer counts only if it does not answer alone either: a candidate can take
        the processor. All inputs are tried only if the first ones show nothing. Raises SandboxError when a
        sandbox failed.
        """
        for name, alone in _CONTROL_RUNS:
            if not self._asked[name][1]["tests"]:
                continue
            contrast = await self._contrast(name, expected)
            if contrast.unanswered and not contrast.shown:
                open_control, job = self._asked[name]
                files = list(dict.fromkeys(map(file_of, contrast.unanswered)))[:_CONFIRMED]
                tests = {each: job["tests"][each] for file in files for each in (file, twin_of(file))}
                self._asked[alone] = (open_control, {**job, "tests": tests})
                again = await self._contrast(alone, expected)
                if (await self.run(alone)).ended:
                    contrast = replace(again, shown=(*again.shown, *again.unanswered))
            if contrast.shown:
                return len(contrast.shown)
        return 0

    async def _contrast(self, name: RunName, expected: Mapping[str, TestObservation]) -> ControlContrast:
        files = self._asked[name][1]["tests"]
        asked = {test: seen for test, seen in expected.items() if file_of(test) in files}
        return await anyio.to_thread.run_sync(contrast_of, asked, await self.run(name))

    async def tells(self) -> bool:
        """Whether these inputs tell the control from gold. Raises like `gold`."""
        await together(self.run("gold"), self.run("control"))
        return bool(await self.shown((await self.gold()).tests))

    def _late(self, gold: ObservedRun) -> frozenset[str]:
        """The test files that did not answer in time."""
        late = {file_of(test) for test, seen in gold.tests.items() if seen.broken == "hang"}
        if not gold.ended:
            late |= self._asked["gold"][1]["tests"].keys() - set(map(file_of, gold.tests))
        return frozenset(late)

    def _check(self, gold: ObservedRun) -> None:
        if gold.forged or not gold.ended:
            why = gold.forged or "its tests do not come to an end"
            raise TaskError(f"The values of the solution are not known: {why}.")
        answered = sum(not each.broken for each in gold.tests.values())
        if answered < len(self._asked["gold"][1]["tests"]) / 2:
            raise SandboxError(
                f"The solution answered {answered} of {len(gold.tests)} tests in time. This machine is too "
                "busy to judge by value."
            )


def file_of(test: str) -> str:
    """The file of a test id."""
    return test.partition("::")[0]


async def together(*runs: Coroutine[Any, Any, ObservedRun]) -> list[ObservedRun]:
    """Awaits all at one time. Raises the first error, after all have ended."""
    done = await asyncio.gather(*runs, return_exceptions=True)
    observed = []
    for each in done:
        if isinstance(each, BaseException):
            raise each
        observed.append(each)
    return observed


def differing_tests(
    expected: Mapping[str, TestObservation], candidate: ObservedRun
) -> tuple[ValueDifference, ...]:
    """The first difference of each test of a run."""
    return tuple(differences(expected, candidate.tests))
