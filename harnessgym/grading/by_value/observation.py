"""What a run of variants observed, and how the candidate's run differs from gold's. Runs on this machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harnessgym.grading.differential.suite import Probe
from harnessgym.grading.matching import same

_TOLERANCE = 1e-9
_TEXT = 300
_ANSWERS = ({"groups", "raised", "reached"}, {"hang"}, {"crash"})
"""The sets of keys that an answer may have."""


@dataclass(frozen=True, slots=True)
class TestObservation:
    """What one test observed, and how it ended."""

    __test__ = False  # no test class, though its name begins like one

    groups: tuple[tuple[Any, ...], ...] = ()
    """The encoded values of each assertion, in the order in which they were observed. The last value of a
    group may be an error: `{"$raised": [names], "meant": bool}`."""
    raised: tuple[str, ...] = ()
    """Names of the first exception's type and its base types; empty if the test came to its end."""
    meant: bool = False
    """Whether a `raise` statement raised it."""
    broken: str = ""
    """`hang` or `crash`, if it ended in one."""
    reached: frozenset[str] = frozenset()
    """Functions that it ran, if the workspace was prepared to report them."""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What all tests of one run observed."""

    tests: Mapping[str, TestObservation]
    """Test id to what it observed."""
    forged: str = ""
    """Why the runner cannot have written this, if it cannot."""
    imported: frozenset[str] = frozenset()
    """Functions that ran while test files were imported, if the workspace was prepared to report them."""
    ended: bool = True
    hung: bool = False
    """Whether the whole run timed out."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One value that the candidate gives and gold does not."""

    test: str
    """Id of the test, in the variant's file."""
    group: int
    """Which of its assertions; their number, if it is how the test ended that differs."""
    gold: str
    candidate: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"test": self.test, "group": self.group, "gold": self.gold, "candidate": self.candidate}


def read_observations(run: Probe) -> ObservedRun:
    """Parses what a run of `observing.py` wrote. Finds lines that it cannot have written."""
    tests: dict[str, TestObservation] = {}
    forged = "lines that the runner did not write" if run.forged else ""
    for line in (line for line in run.lines if "case" in line):
        name = line["case"]
        answer = {key: value for key, value in line.items() if key != "case"}
        if not isinstance(name, str):
            forged = forged or "an answer of a test that has no name"
        elif name in tests:
            forged = forged or f"two answers of the test {name[:60]!r}"
        elif (observation := _observation(answer)) is None:
            forged = forged or f"an answer of {name[:60]!r} in no form that the runner gives"
        else:
            tests[name] = observation
    if not run.began:
        forged = forged or "no line that says that the runner started"
    imported: set[str] = set()
    for names in (line["imported"] for line in run.lines if "imported" in line):
        if _is_list_of(names, str):
            imported.update(names)
        else:
            forged = forged or "names of functions in no form that the runner gives"
    return ObservedRun(tests, forged, frozenset(imported), run.ended, run.result.timed_out)


def _observation(answer: Mapping[str, Any]) -> TestObservation | None:
    """The answer of one test; None if the runner cannot have written it."""
    if set(answer) not in _ANSWERS:
        return None
    if "groups" not in answer:
        return TestObservation(broken=next(iter(answer)))
    groups = answer["groups"]
    reached = answer["reached"]
    end = _first_error(answer["raised"])
    if end is None or not _is_list_of(groups, list) or not _is_list_of(reached, str):
        return None
    names, meant = end
    return TestObservation(tuple(map(tuple, groups)), names, meant, reached=frozenset(reached))


def _first_error(phases: Any) -> tuple[tuple[str, ...], bool] | None:
    """Names and intent of the first error of a test; no names if there is none, None if that cannot be."""
    match phases:
        case []:
            return (), False
        case [[str(), [*names], bool(meant)], *_] if names and _is_list_of(names, str):
            return tuple(names), meant
    return None


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def stable(first: ObservedRun, second: ObservedRun) -> dict[str, TestObservation]:
    """What gold observed twice in the same way: each test up to the first assertion that differs.

    A test that hung or crashed is left out. If the assertions agree but the ends do not, the end is left open
    (`broken` is set).
    """
    agreed: dict[str, TestObservation] = {}
    for name, one in first.tests.items():
        other = second.tests.get(name)
        if other is None or one.broken or other.broken:
            continue
        pairs = zip(one.groups, other.groups, strict=False)
        shortest = min(len(one.groups), len(other.groups))
        count = next((at for at, pair in enumerate(pairs) if not _same_group(*pair)), shortest)
        whole = count == len(one.groups) == len(other.groups) and one.raised == other.raised
        agreed[name] = one if whole else replace(one, groups=one.groups[:count], broken="unstable")
    return agreed


def differences(
    gold: Mapping[str, TestObservation], candidate: Mapping[str, TestObservation]
) -> Iterator[ValueDifference]:
    """The first difference of each test. `gold` is what is `stable`.

    Where gold fails with an error that no `raise` statement raised, it is not meant for the input. What the
    candidate does there is not compared.
    """
    for name, expected in gold.items():
        difference = _difference(expected, candidate.get(name, TestObservation(broken="not run")))
        if difference is not None:
            yield ValueDifference(name, *difference)


def differing_groups(gold: TestObservation, candidate: TestObservation | None) -> frozenset[int]:
    """The assertions of one test with other values than on gold. Their number stands for the test's end.

    A candidate that ends early differs in the assertion that it does not reach first: what it would do in
    those behind is not known. One that did not answer differs everywhere.
    """
    if candidate is None or candidate.broken:
        return frozenset(range(len(gold.groups) + 1))
    pairs = enumerate(zip(gold.groups, candidate.groups, strict=False))
    found = {at for at, (expected, actual) in pairs if not _same_group(actual, expected)}
    reached = min(len(gold.groups), len(candidate.groups))
    rest = [replace(each, groups=each.groups[reached:]) for each in (gold, candidate)]
    return frozenset(found | {reached} if _difference(*rest) is not None else found)


def _difference(gold: TestObservation, candidate: TestObservation) -> tuple[int, str, str] | None:
    count = len(gold.groups)
    if candidate.broken:
        return (0, _end(gold), candidate.broken) if count or _decided(gold) else None
    for at, expected in enumerate(gold.groups):
        if at >= len(candidate.groups):
            return at, _shown(expected), _end(candidate)
        if not _same_group(candidate.groups[at], expected):
            return at, _shown(expected), _shown(candidate.groups[at])
    if not _decided(gold):
        return None
    # Gold came to its end, or raised on purpose, after these assertions.
    if len(candidate.groups) > count or not _ends_alike(gold, candidate):
        return count, _end(gold), _end(candidate)
    return None


def _same_group(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether an assertion observed the same values, as far as gold is meant for the input."""
    for at, value in enumerate(expected):
        if isinstance(value, dict) and "$raised" in value:
            return not value["meant"] or (
                len(actual) == at + 1 and _raised_alike(value["$raised"], actual[at])
            )
        if at >= len(actual) or not same(actual[at], value, _TOLERANCE, exact_integers=True):
            return False
    return len(actual) == len(expected)


def _raised_alike(names: Sequence[str], actual: Any) -> bool:
    """Whether the candidate raised an exception of gold's type, or of one derived from it."""
    raised = actual.get("$raised") if isinstance(actual, dict) else None
    return isinstance(raised, list) and names[0] in raised


def _decided(gold: TestObservation) -> bool:
    """Whether how gold's test ends says something about the package."""
    return not gold.broken and (not gold.raised or gold.meant)


def _ends_alike(gold: TestObservation, candidate: TestObservation) -> bool:
    if not gold.raised or not candidate.raised:
        return gold.raised == candidate.raised
    return gold.raised[0] in candidate.raised


def _end(observation: TestObservation) -> str:
    if observation.broken:
        return observation.broken
    # A candidate writes any name, of any length and with any characters.
    return f"raises {observation.raised[0][:_TEXT]!r}" if observation.raised else "the test's end"


def _shown(value: Any) -> str:
    """Values as text. The candidate's are hostile, so they stay encoded."""
    try:
        return json.dumps(value)[:_TEXT]
    except RecursionError:
        return "something very deep"
