"""What a plan decides: a function of the seeds and the ordinal alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.faults.fault import FaultsSection
from harnessgym.faults.plan import FaultPlan, matches


def section(*inject, seed=1):
    return validate(FaultsSection, {"seed": seed, "inject": list(inject)}, "faults")


def told(plan, commands):
    return [
        [(draw.index, draw.ordinal, draw.amount) for draw in plan.decide(command)] for command in commands
    ]


@given(
    st.integers(),
    st.integers(),
    st.floats(0, 1),
    st.lists(st.sampled_from(["ls", "git push", "pytest -q"]), max_size=30),
)
def test_equal_seeds_give_equal_faults(seed, rollout_seed, probability, lines):
    late = {"kind": "latency", "distribution": "exponential", "probability": probability}
    faults = section(late, {"kind": "flaky", "match": "git", "probability": 0.5}, seed=seed)
    commands = [line.split() for line in lines]
    assert told(FaultPlan(faults, rollout_seed), commands) == told(FaultPlan(faults, rollout_seed), commands)


def test_other_seeds_give_other_faults():
    late = {"kind": "latency", "distribution": "uniform", "probability": 0.5}
    commands = [["ls"]] * 50
    decisions = [
        told(FaultPlan(section(late, seed=seed), rollout), commands) for seed in (1, 2) for rollout in (1, 2)
    ]
    assert all(one != other for at, one in enumerate(decisions) for other in decisions[:at])


def test_a_command_that_does_not_match_changes_nothing_for_the_others():
    faults = section({"kind": "flaky", "match": "git", "probability": 0.5})
    alone = told(FaultPlan(faults, 1), [["git"]] * 20)
    mixed = told(FaultPlan(faults, 1), [["git"], ["ls"]] * 20)
    assert mixed[::2] == alone
    assert not any(mixed[1::2])


def test_the_schedule_is_what_is_decided():
    faults = section(
        {"kind": "latency", "match": "git", "probability": 0.3, "count": 4, "distribution": "lognormal"}
    )
    scheduled = [(draw.index, draw.ordinal, draw.amount) for draw in FaultPlan(faults, 5).schedule(0, 100)]
    decided = [draw for draws in told(FaultPlan(faults, 5), [["git"]] * 100) for draw in draws]
    assert scheduled == decided
    assert len(decided) == 4


def test_probability_is_met_in_the_long_run():
    plan = FaultPlan(section({"kind": "disk_full", "probability": 0.25}), 1)
    assert 800 < len(plan.schedule(0, 4000)) < 1200


@pytest.mark.parametrize(
    ("match", "command", "does"),
    [
        ("*", ["/usr/bin/anything", "x"], True),
        ("git", ["git"], True),
        ("git", ["/usr/bin/git", "push", "origin"], True),
        ("git", ["gitk"], False),
        ("git push*", ["git", "push", "origin"], True),
        ("git push*", ["git", "pull"], False),
        ("pytest", ["bash", "-lc", "cd src && pytest -q | tail"], True),
        ("pytest -q", ["sh", "-c", "pytest -q"], True),
        ("pytest", ["sh", "-c", "echo pytest"], False),
        ("pytest", ["sh", "pytest"], False),
    ],
)
def test_matching(match, command, does):
    (fault,) = section({"kind": "disk_full", "match": match}).inject
    assert matches(fault, command) is does


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"kind": "gremlins"}, "gremlins"),
        ({"kind": "flaky", "exit_code": 0}, "exit_code"),
        ({"kind": "latency", "probability": 2}, "probability"),
        ({"kind": "injection", "text": "x"}, "label"),
        ({"kind": "disk_full", "match": "a\tb"}, "on one line"),
        ({"kind": "disk_full", "seconds": 3}, "seconds"),
    ],
)
def test_wrong_settings_are_refused(fault, says):
    with pytest.raises(ConfigError, match=says):
        section(fault)
