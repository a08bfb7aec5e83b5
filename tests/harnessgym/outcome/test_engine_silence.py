import pytest

from harnessgym.outcome.engine_silence import CallSilence, blamed


def call(**values):
    return CallSilence(
        **{"call_id": "c", "policy": True, "upstream": "engine-0", "answered": False, **values}
    )


@pytest.mark.parametrize(
    ("wall_s", "silent_s", "words"),
    [
        (
            60.0,
            5.0,
            "engine-0: call c had been without a token for 5.0 s when the time limit of 60 s was over",
        ),
        (60.0, 4.9, None),
        (12.0, 3.0, "3.0 s"),
        (12.0, 2.9, None),
        (1.0, 1.0, "1.0 s"),
        (1.0, 0.9, None),
        (3600.0, 5.0, "5.0 s"),
    ],
)
def test_a_quarter_of_the_time_limit_between_one_second_and_five(wall_s, silent_s, words):
    told = blamed([call(), call(silent_s=silent_s)], timed_out=True, wall_s=wall_s)
    assert told == words if words is None else words in told


def test_a_call_that_had_tokens_until_the_end_is_the_policys():
    assert blamed([call(silent_s=0.1), call(answered=True)], timed_out=True, wall_s=60.0) is None


def test_without_a_ready_engine_nobody_is_named():
    assert blamed([call(upstream="", silent_s=9.0)], timed_out=True, wall_s=60.0).startswith(
        "No engine was ready, and a call"
    )


@pytest.mark.parametrize(("whole_s", "blames"), [(29.0, False), (30.0, True)])
def test_an_outside_model_may_think_for_half_of_the_time(whole_s, blames):
    assert (blamed([call(whole_s=whole_s)], timed_out=True, wall_s=60.0) is not None) == blames


@pytest.mark.parametrize(
    ("lost_s", "timed_out", "blames"), [(6.0, True, True), (5.9, True, False), (50.0, False, False)]
)
@pytest.mark.parametrize("name", ["lost_s", "silent_s"])
def test_time_lost_with_an_engine_counts_where_time_ran_out(name, lost_s, timed_out, blames):
    told = blamed([call(answered=True, **{name: lost_s})], timed_out=timed_out, wall_s=60.0)
    assert (told is not None) == blames


@pytest.mark.parametrize(
    ("values", "blames"),
    [
        ({"silent_s": 5.0}, True),
        ({"silent_s": 5.0, "answered": True}, False),
        ({"silent_s": 5.0, "policy": False}, False),
        ({"silent_s": 4.0}, False),
    ],
)
def test_a_harness_that_ends_by_itself_was_failed_by_a_call_that_nobody_answered(values, blames):
    assert (blamed([call(**values)], timed_out=False, wall_s=60.0) is not None) == blames


def test_a_side_call_that_hangs_costs_the_harness_its_time_too():
    assert blamed([call(policy=False, silent_s=5.0)], timed_out=True, wall_s=60.0) is not None
