import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.metrics.interval import Interval, mean_with_interval, paired_difference, share_with_interval

REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@settings(max_examples=30)
@given(REWARDS)
def test_the_interval_is_around_the_mean_and_within_the_values(values):
    found = mean_with_interval(values)
    assert min(values) - 1e-9 <= found.low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= found.high <= max(values) + 1e-9


def test_without_values_nothing_is_made_up():
    assert mean_with_interval([]) == Interval(None, None, None)
    assert mean_with_interval([0.5]) == Interval(0.5, None, None)
    assert Interval(None, None, None).as_json() == {"mean": None, "low": None, "high": None}
    assert Interval(1 / 3, 0.0, 1.0).as_json() == {"mean": 0.3333, "low": 0.0, "high": 1.0}


def test_the_interval_is_about_as_wide_as_the_normal_one_for_many_values():
    draw = random.Random(1)
    values = [float(draw.random() < 0.3) for _ in range(400)]
    found = mean_with_interval(values)
    half = 1.96 * (found.mean * (1 - found.mean) / len(values)) ** 0.5
    assert found.low == pytest.approx(found.mean - half, abs=0.1 * half)
    assert found.high == pytest.approx(found.mean + half, abs=0.1 * half)


def test_about_nineteen_of_twenty_intervals_hold_the_truth():
    draw = random.Random(2)
    held = 0
    for trial in range(120):
        found = mean_with_interval([float(draw.random() < 0.4) for _ in range(30)], trial)
        held += found.low <= 0.4 <= found.high
    assert 0.88 <= held / 120 <= 1.0


def test_a_sure_gain_has_an_interval_above_zero():
    found = paired_difference([0.0] * 200, [1.0] * 180 + [0.0] * 20)
    assert found.mean == pytest.approx(0.9)
    assert 0.8 < found.low < 0.9 < found.high < 1.0


def test_no_gain_has_an_interval_around_zero():
    draw = random.Random(0)
    before = [float(draw.random() < 0.3) for _ in range(200)]
    after = [float(draw.random() < 0.3) for _ in range(200)]
    found = paired_difference(before, after)
    assert found.low < 0 < found.high


def test_pairing_takes_out_what_tasks_differ_by_themselves():
    draw = random.Random(3)
    hard = [draw.random() for _ in range(100)]
    found = paired_difference(hard, [each + 0.01 for each in hard])
    assert (found.low, found.high) == pytest.approx((0.01, 0.01))
    assert mean_with_interval(hard).high - mean_with_interval(hard).low > 0.05


def test_the_interval_is_the_same_every_time():
    values = [0.0, 1.0] * 50, [1.0, 1.0, 0.0, 1.0] * 25
    assert paired_difference(*values) == paired_difference(*values)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=20))
def test_the_other_way_round_it_is_the_opposite(pairs):
    before, after = zip(*pairs, strict=True)
    one, other = paired_difference(before, after), paired_difference(after, before)
    assert one.mean == pytest.approx(-other.mean, abs=1e-9)
    assert (one.low > 0) <= (other.high < 1e-9)


def test_values_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 0.0], [1.0])


@given(st.integers(1, 200).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_the_interval_of_a_rate_holds_those_that_explain_it(hits_of):
    """Wilson's bounds are where the rate seen lies 1.96 standard errors of the *assumed* rate away."""
    hits, count = hits_of
    found = share_with_interval(hits, count)
    assert 0.0 <= found.low <= found.mean == hits / count <= found.high <= 1.0
    assert found.low < found.high
    for bound in {found.low, found.high} - {0.0, 1.0}:
        error = (bound * (1 - bound) / count) ** 0.5
        assert abs(bound - found.mean) == pytest.approx(1.96 * error, rel=1e-3)


def test_a_rate_of_nothing_is_none_and_one_above_one_is_refused():
    assert share_with_interval(0, 0) == Interval(None, None, None)
    assert share_with_interval(0, 20).high == pytest.approx(0.1611, abs=1e-4)
    for hits, count in ((2, 1), (-1, 3)):
        with pytest.raises(ValueError, match="no share"):
            share_with_interval(hits, count)
