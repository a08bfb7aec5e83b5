"""What a pytest run reports is believed only if an honest run could have written it."""

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.canaries import Canaries
from harnessgym.grading.pytest_report import PytestReport, count

NONCE = "a1"
EXPECTED = ("t.py::a", "t.py::b")


def draw():
    return Canaries.draw({"t.py": "def a(): pass\n\n\ndef b(): pass\n"}, ["t.py"], EXPECTED)


def lines(*words):
    return b"".join(
        b" ".join([NONCE.encode(), *(word.encode().hex().encode() for word in line)]) + b"\n"
        for line in words
    )


def honest(canary, failing=()):
    tests = [*EXPECTED, *canary.good, *canary.bad]
    said = [("relayed", "hidden"), ("began", "9"), *[("collected", test) for test in tests]]
    for test in tests:
        for when in ("setup", "call", "teardown"):
            fails = when == "call" and (test in canary.bad or test in failing)
            said.append(("phase", test, when, "failed" if fails else "passed", ""))
    return [*said, ("ended", "1")]


def counted(said, canary, exit_code=1, raw=b""):
    return count(PytestReport.parse(lines(*said) + raw, NONCE), EXPECTED, canary, exit_code)


def test_an_honest_report_is_believed():
    canary = draw()
    assert counted(honest(canary), canary).passed
    outcome = counted(honest(canary, failing=("t.py::b",)), canary)
    assert (outcome.passed, outcome.tampered) == (False, None)
    assert outcome.facts["relayed"] == "hidden"


def test_a_wrong_answer_may_make_tests_fail_that_must_pass():
    canary = draw()
    outcome = counted(honest(canary, failing=("t.py::b", *canary.good)), canary)
    assert (outcome.passed, outcome.tampered) == (False, None)
    outcome = counted(honest(canary, failing=canary.good), canary)
    assert "must pass did not" in outcome.tampered


def test_every_contradiction_is_tampering():
    canary = draw()
    good, bad = next(iter(canary.good)), next(iter(canary.bad))
    said = honest(canary)

    def without(word):
        return [line for line in said if line != word]

    passing = [(*line[:3], "passed", "") if line[:3] == ("phase", bad, "call") else line for line in said]
    skipped = [(*line[:3], "skipped", "") if line[:3] == ("phase", good, "call") else line for line in said]
    cases = {
        "canary passed": counted(passing, canary),
        "canary skipped": counted(skipped, canary),
        "collected twice": counted([*said[:3], said[2], *said[3:]], canary),
        "phase twice": counted([*said[:-1], said[-2], said[-1]], canary),
        "after the end": counted([*said, ("phase", "t.py::a", "call", "passed", "")], canary),
        "ended twice": counted([*said, ("ended", "1")], canary),
        "not collected": counted(without(("collected", "t.py::a")), canary),
        "collected, not the task's": counted([("began", "9"), ("collected", "t.py::z"), *said[1:]], canary),
        "no end, exit 0": counted(said[:-1], canary, exit_code=0),
        "end says 0": counted([*said[:-1], ("ended", "0")], canary, exit_code=0),
        "exit codes differ": counted(said, canary, exit_code=0),
        "foreign line": counted(said, canary, raw=b"2 passed\n"),
        "other nonce": counted(said, canary, raw=b"a2 " + b"began".hex().encode() + b"\n"),
        "half a line": counted(said, canary, raw=b"a1 zz\n"),
        "foreign, says the relay": counted([*said[:-1], ("foreign",), said[-1]], canary),
        "relayed twice": counted([*said[:2], ("relayed", "hidden"), *said[2:]], canary),
    }
    assert {name for name, outcome in cases.items() if outcome.tampered is None or outcome.passed} == set()


@given(st.binary())
def test_no_report_raises(data):
    canary = draw()
    assert not count(PytestReport.parse(data, NONCE), EXPECTED, canary, 0).passed
