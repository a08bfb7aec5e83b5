"""What gold and the control answer to the inputs of one draw, and whether that tells right from wrong."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import anyio.to_thread

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.by_value.lookup import LookupControl, twin_of, with_twins
from harnessgym.grading.by_value.observation import (
    ObservedRun,
    TestObservation,
    ValueDifference,
    differences,
    stable,
)
from harnessgym.grading.by_value.plan import observe
from harnessgym.grading.verifier import Opener

_CONTROL = 16
"""Variants that the control runs. It runs the others only if these do not show the fault."""
RunName = Literal["gold", "gold alone", "gold again", "control", "whole control"]


class ReferenceRuns:
    """The answers of gold and of the control to the inputs of one draw. Each run is made once."""

    def __init__(
        self, job: Mapping[str, Any], open_gold: Opener, open_control: Opener, control: LookupControl
    ) -> None:
        # Variants on which the control is as strong as it could be. Those of tests that show the fault come
        # first, and fresh calls, which are in no table, last.
        counted = [file for file, tests in job["tests"].items() if control.counts(tests)]
        first = list(dict.fromkeys([*counted[:_CONTROL], *counted[-1:]]))
        self._asked: dict[RunName, tuple[Opener, Mapping[str, Any]]] = {
            "gold": (open_gold, job),
            "gold alone": (open_gold, job),
            "gold again": (open_gold, job),
            "control": (open_control, with_twins(job, first)),
            "whole control": (open_control, with_twins(job, counted)),
        }
        self.table = control.strong
        """Whether the control has a table that answers tests with their own inputs."""
        self._done: dict[RunName, ObservedRun] = {}
        self._running = {name: asyncio.Lock() for name in self._asked}

    async def run(self, name: RunName) -> ObservedRun:
        """A run by name. `gold again` has the same inputs as `gold`, and `gold alone` those on which `gold`
        did not end; `control` has the first inputs, `whole control` all.

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
        without.

        All inputs are tried only if the first ones show nothing.
        """
        names: Sequence[RunName] = ("control", "whole control")
        for name in names:
            files = frozenset(self._asked[name][1]["tests"])
            asked = {test: seen for test, seen in expected.items() if _file_of(test) in files}
            run = await self.run(name)
            caught = await anyio.to_thread.run_sync(differing_tests, asked, run)
            # Where the faulty code is right and the table is not, a better table would leave it alone.
            twins = {twin_of(each.test): asked[each.test] for each in caught}
            if wrong := await anyio.to_thread.run_sync(differing_tests, twins, run):
                return len(wrong)
        return 0

    async def tells(self) -> bool:
        """Whether these inputs tell the control from gold. Raises like `gold`."""
        await together(self.run("gold"), self.run("control"))
        return bool(await self.shown((await self.gold()).tests))

    def _late(self, gold: ObservedRun) -> frozenset[str]:
        """The test files that did not answer in time."""
        late = {_file_of(test) for test, seen in gold.tests.items() if seen.broken == "hang"}
        if not gold.ended:
            late |= self._asked["gold"][1]["tests"].keys() - set(map(_file_of, gold.tests))
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


def _file_of(test: str) -> str:
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
