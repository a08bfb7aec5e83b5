"""Compares what two versions of a function did with the same inputs. Runs on this machine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.grading.differential.functions import Function
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.differential.suite import Difference, Kind, Probe
from harnessgym.grading.matching import same
from harnessgym.grading.runners.encoding import decode

NOT_TWICE = "the gold solution does not do the same twice"
_TOLERANCE = 1e-9
_TEXT = 300
_ANSWERS = (
    {"result", "after", "printed"},
    {"raised", "meant", "after", "printed"},
    {"digest"},
    {"hang"},
    {"crash"},
)
"""The sets of keys that an answer may have."""

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VersionResults:
    """The answers of one version."""

    cases: Mapping[int, Answer]
    broken: Mapping[str, str] = field(default_factory=dict)
    """Modules that cannot be imported, and why."""
    imported: bool = True
    """Whether all imports finished."""
    ended: bool = True
    hung: bool = False
    """Whether the run timed out."""
    forged: str = ""
    """Why the runner cannot have written these answers, if it cannot."""


@dataclass(frozen=True, slots=True)
class BehaviourDifference:
    """The result of a comparison."""

    differs: tuple[Difference, ...]
    inputs: int
    unstable: frozenset[str]
    """Functions whose two runs on the gold solution differ."""


def read_answers(run: Probe, cases: int) -> VersionResults:
    """Parses what a run of `comparing.py` answered to `cases` cases.

    Finds answers that it cannot have written.
    """
    answers: dict[int, Answer] = {}
    forged = "lines that the runner did not write" if run.forged else ""
    for line in run.lines:
        if "case" not in line:
            continue
        answer = {key: value for key, value in line.items() if key != "case"}
        number = line["case"]
        # The code under test shares a process with the runner and can write lines too. A line that the runner
        # cannot have written makes the whole run worthless. `type` excludes True, which is an int.
        if type(number) is not int or not 0 <= number < cases or number in answers:
            forged = forged or f"case {str(number)[:20]} was not asked, or answered twice"
        elif set(answer) not in _ANSWERS or not _well_formed(answer):
            forged = forged or f"the answer to case {number} has no form that the runner gives"
        else:
            answers[number] = answer
    if not run.began:
        forged = forged or "the runner did not start"
    broken = {
        str(line["module"]): str(line.get("broken", ""))[:_TEXT] for line in run.lines if "module" in line
    }
    imported = any("imported" in line for line in run.lines)
    return VersionResults(answers, broken, imported, run.ended, run.result.timed_out, forged)


def compare(
    inputs: Sequence[tuple[Function, FunctionCall]],
    gold: VersionResults,
    again: VersionResults,
    theirs: VersionResults,
) -> BehaviourDifference:
    """Compares every input that the gold solution answers twice in the same way.

    Skips generated inputs on which gold fails with an error that its code does not raise on purpose: the
    function is not meant for them. Where gold raises, the candidate must raise an exception of the same name,
    or one derived from it.
    """
    # One unstable call condemns the whole function: its other calls may have agreed by chance.
    unstable = {
        function.place
        for number, (function, _) in enumerate(inputs)
        if (first := gold.cases.get(number)) is not None
        and (second := again.cases.get(number)) is not None
        and not _same_answer(first, second)
    }
    if not theirs.imported:
        how = "it does not end" if theirs.hung else "it ends the interpreter"
        modules = sorted({function.module for function, _ in inputs})
        return BehaviourDifference(
            tuple(Difference(name, "import", candidate=how) for name in modules), 0, frozenset(unstable)
        )
    differs = [Difference(name, "import", candidate=why) for name, why in theirs.broken.items()]
    count = 0
    lost = False
    for number, (function, call) in enumerate(inputs):
        first = gold.cases.get(number)
        if (
            function.place in unstable
            or function.module in theirs.broken
            or first is None
            or number not in again.cases
        ):
            continue
        if "hang" in first or "crash" in first or not (call.seen or first.get("meant", True)):
            continue
        answer = theirs.cases.get(number)
        # When the candidate's process died, the first missing answer is the call that killed it: a crash.
        # Those after it were never tried. A run that ended or timed out skipped calls for other reasons.
        if answer is None and (theirs.ended or theirs.hung or lost):
            continue
        lost = lost or answer is None
        count += 1
        difference = _difference(
            function, call, first, answer or {"crash": "it ended the process that called it"}
        )
        if difference is not None:
            differs.append(difference)
    return BehaviourDifference(tuple(differs), count, frozenset(unstable))


def _difference(function: Function, call: FunctionCall, gold: Answer, answer: Answer) -> Difference | None:
    kind = _kind(gold, answer)
    if kind is None:
        return None
    key = {"arguments": "after", "output": "printed"}.get(kind)
    ours, theirs = (_outcome(gold), _outcome(answer)) if key is None else (gold[key], answer[key])
    return Difference(function.place, kind, _arguments(call), _shown(ours), _shown(theirs))


def _kind(gold: Answer, answer: Answer) -> Kind | None:
    if "hang" in answer or "crash" in answer:
        return "hang" if "hang" in answer else "crash"
    # A long result is sent as a digest, which can only be compared for equality, without the tolerance.
    if "digest" in gold or "digest" in answer:
        return None if gold == answer else "result"
    if "raised" in gold or "raised" in answer:
        return None if set(gold.get("raised", ())[:1]) & set(answer.get("raised", ())) else "exception"
    agree: Mapping[Kind, bool] = {
        "result": same(answer["result"], gold["result"], _TOLERANCE),
        "arguments": same(answer["after"], gold["after"], _TOLERANCE),
        "output": not gold["printed"] or gold["printed"] == answer["printed"],
    }
    return next((kind for kind, agrees in agree.items() if not agrees), None)


def _same_answer(first: Answer, second: Answer) -> bool:
    """Whether two runs of the same function gave the same answer."""
    return first.keys() == second.keys() and all(same(second[key], first[key], _TOLERANCE) for key in first)


def _well_formed(answer: Answer) -> bool:
    raised = answer.get("raised", [])
    texts = [answer.get("printed", ""), answer.get("digest", "")]
    return (
        isinstance(raised, list)
        and all(isinstance(name, str) for name in raised)
        and all(isinstance(t, str) for t in texts)
    )


def _outcome(answer: Answer) -> Any:
    if "raised" in answer:
        return f"raises {answer['raised'][0] if answer['raised'] else 'something'}"
    if "hang" in answer:
        return f"no end within {answer['hang']} s"
    return answer.get("crash", answer.get("result", "something long"))


def _arguments(call: FunctionCall) -> str:
    """The arguments as source code. They are ours, not the candidate's, so decoding them is safe."""
    args = [repr(value) for value in decode(call.args)]
    args += [f"{name}={value!r}" for name, value in decode(call.kwargs).items()]
    text = f"({', '.join(args)})"
    if call.new is not None:
        text = f"on one made with {tuple(decode(call.new['args']))!r}: {text}"
    return text[:_TEXT]


def _shown(value: Any) -> str:
    """A value as text. The candidate's values are hostile, so they stay encoded."""
    if isinstance(value, str):
        return value[:_TEXT]
    try:
        return json.dumps(value)[:_TEXT]
    except RecursionError:
        return "something very deep"
