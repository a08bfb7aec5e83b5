"""The two adversaries of GDRO: which bins get tasks, and how the budget is spent on sizes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.scheduling.selection import Visit
from harnessgym.scheduling.selectors.gdro import Gdro, GdroSettings
from tests.harnessgym.scheduling.selectors.visiting import play, pool, visit


def selector(tasks=8, group_size=8, groups_per_step=4, seed=0, **options):
    return Gdro(validate(GdroSettings, options, "the test"), pool(tasks, group_size, groups_per_step, seed))


def chosen(visits, *, wanted=1, count=200, **options):
    """How often each task was chosen over many draws."""
    made = selector(**options)
    return Counter(pick.task for number in range(count) for pick in made.choose(number, wanted, visits))


def test_equal_visits_give_equal_choices():
    visits = [visit("t0", 3), visit("t1", 8)]
    assert selector(seed=5).choose(2, 4, visits) == selector(seed=5).choose(2, 4, visits)
    assert [selector(seed=seed).choose(2, 4, visits) for seed in range(3)].count(
        selector(seed=5).choose(2, 4, visits)
    ) == 0


def test_every_task_is_chosen_before_one_is_chosen_twice():
    picks = selector(tasks=4).choose(0, 8, [])
    assert sorted(Counter(pick.task for pick in picks).values()) == [2, 2, 2, 2]


def test_tasks_with_an_open_group_come_last():
    waiting = [Visit(f"t{place}", 8, 0, open=True) for place in (0, 2)]
    picks = selector(tasks=4, groups_per_step=2).choose(2, 2, waiting)
    assert {pick.task for pick in picks} == {"t1", "t3"}


def test_bins_of_failing_tasks_are_preferred():
    visits = [visit("t0", 0) for _ in range(30)] + [visit("t1", 8) for _ in range(30)]
    counts = chosen(visits, tasks=2, rate=20.0, mix=0.1)
    assert counts["t0"] > 0.9 * counts.total()


def test_the_mixture_keeps_every_bin_alive():
    visits = [visit("t0", 0) for _ in range(30)] + [visit("t1", 8) for _ in range(30)]
    counts = chosen(visits, tasks=2, rate=1000.0, mix=0.5)
    assert counts["t1"] / counts.total() == pytest.approx(0.25, abs=0.1)


def test_a_task_that_was_never_visited_is_in_the_bin_of_the_hardest():
    visits = [*(visit("t1", 8) for _ in range(30)), *(visit("t2", 0) for _ in range(30))]
    counts = chosen(visits, tasks=3, rate=1000.0, mix=0.01)
    assert counts["t0"] == pytest.approx(counts["t2"], rel=0.35), "they share a bin"
    assert counts["t1"] < 10


@pytest.mark.parametrize("other", [Visit("gone", 8, 0, (1.0,) * 8), Visit("t1", 8, 0)])
def test_unknown_tasks_and_ungraded_groups_teach_nothing(other):
    known = [visit("t0", 0)]
    options = {"tasks": 2, "rate": 1000.0, "mix": 0.01, "count": 100}
    assert chosen([other, *known], **options) == chosen([*known, *known], **options)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_a_step_spends_its_budget_exactly(seed, steps):
    done = play("gdro", [0.1, 0.4, 0.6, 0.9, 1.0], 4 * steps, at_once=4, seed=seed)
    for step in range(steps):
        assert sum(item.size for item in done[4 * step : 4 * step + 4]) == 4 * 8
    assert {item.size for item in done} <= {2, 4, 8, 12, 16}


def test_a_step_that_is_chosen_piece_by_piece_spends_it_too():
    done = play("gdro", [0.1, 0.5, 0.9], 12, at_once=1)
    assert [sum(item.size for item in done[at : at + 4]) for at in (0, 4, 8)] == [32, 32, 32]


def test_own_sizes_are_the_only_ones():
    done = play("gdro", [0.5, 0.9], 40, at_once=4, settings={"sizes": [6, 10]})
    assert {item.size for item in done} == {6, 10}
    assert sum(item.size for item in done) == 40 * 8


@pytest.mark.parametrize("sizes", [(9, 12), (2, 7), (10,)])
def test_sizes_must_enclose_the_usual_one(sizes):
    with pytest.raises(ConfigError, match="gdro"):
        selector(sizes=sizes)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"bins": 1}, "bins"),
        ({"hysteresis": 0.5}, "hysteresis"),
        ({"mix": 0}, "mix"),
        ({"sizes": [1, 8]}, "sizes"),
    ],
)
def test_settings_out_of_range_are_refused(options, name):
    with pytest.raises(ConfigError, match=name):
        selector(**options)


def test_groups_of_one_rollout_are_refused():
    with pytest.raises(ConfigError, match="gdro"):
        selector(group_size=1)
