import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.simulation.clock import Clock
from harnessgym.simulation.measures import Level, Measures


def wait(clock, seconds):
    clock.after(seconds, lambda: None)
    clock.step()


def test_a_mean_weighs_each_value_by_its_time():
    clock = Clock()
    level = Level(clock)
    wait(clock, 1.0)
    level.add(3)
    wait(clock, 2.0)
    level.add(-1)
    wait(clock, 1.0)
    assert level.integral() == pytest.approx(3 * 2 + 2 * 1)
    assert level.mean() == pytest.approx(8 / 4)
    assert (level.value, level.highest) == (2, 3)


def test_a_level_of_no_time_has_a_mean_of_zero():
    level = Level(Clock())
    level.add(5)
    assert (level.mean(), level.integral(), level.highest) == (0.0, 0.0, 5)


def test_a_level_may_begin_late():
    clock = Clock()
    wait(clock, 10.0)
    level = Level(clock)
    level.add(4)
    wait(clock, 1.0)
    assert level.mean() == pytest.approx(4.0)


def test_a_restart_keeps_the_number_and_forgets_the_rest():
    clock = Clock()
    level = Level(clock)
    level.add(9)
    wait(clock, 5.0)
    level.add(-7)
    level.restart()
    wait(clock, 2.0)
    assert (level.value, level.highest) == (2, 2)
    assert level.mean() == pytest.approx(2.0)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(-5, 5)), min_size=1, max_size=20))
def test_the_integral_is_the_sum_of_values_times_seconds(changes):
    clock = Clock()
    level = Level(clock)
    area, value, highest = 0.0, 0, 0
    for seconds, change in changes:
        wait(clock, seconds)
        area += value * seconds
        level.add(change)
        value += change
        highest = max(highest, value)
    assert level.integral() == pytest.approx(area, abs=1e-9)
    assert (level.value, level.highest) == (value, highest)


def test_levels_are_created_once():
    measures = Measures(Clock())
    assert measures.level("engines") is measures.level("engines")
    assert list(measures.levels()) == ["engines"]


def test_the_end_of_the_warm_up_discards_what_was_measured():
    clock = Clock()
    measures = Measures(clock)
    measures.counts["groups dropped"] += 3
    measures.staleness[2] += 100
    measures.versions[1] += 4
    measures.level("engines").add(2)
    wait(clock, 4.0)
    measures.level("engines").add(-2)
    measures.restart()
    measures.counts["groups dropped"] += 1
    measures.counts["calls moved"] += 2
    assert (measures.counted("groups dropped"), measures.counts["groups dropped"]) == (1, 4)
    assert measures.counted("calls moved") == 2
    assert measures.counted("never seen") == 0
    assert (measures.since, measures.level("engines").highest) == (4.0, 0)
    assert not measures.staleness
    assert not measures.versions
