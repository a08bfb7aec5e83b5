"""What each selector prefers, among tasks whose success rates never change."""

import numpy as np
import pytest

from harnessgym.scheduling.selection import make_selector
from tests.harnessgym.scheduling.selectors.visiting import play, pool, share, visit

RATES = np.array([0.0] * 8 + [1 / 3] * 8 + [1.0] * 8)
HARD, MIDDLE, EASY = ({f"t{place}" for place in range(first, first + 8)} for first in (0, 8, 16))


@pytest.mark.parametrize("name", ["vade", "insight"])
def test_rollouts_go_to_tasks_that_may_go_either_way(name):
    visits = play(name, RATES, 240, at_once=4)[120:]
    assert share(visits, MIDDLE) > 0.55
    assert share(visits, EASY) < 0.2
    uniform = play("uniform", RATES, 240, at_once=4)[120:]
    assert share(uniform, MIDDLE) == pytest.approx(1 / 3, abs=0.02)


def test_vade_prefers_a_third_to_two_thirds():
    """p(1-p)^2 is 4/27 at the one and 2/27 at the other."""
    rates = np.array([1 / 3] * 8 + [2 / 3] * 8)
    visits = play("vade", rates, 320, at_once=2)[80:]
    assert share(visits, {f"t{place}" for place in range(8)}) > 0.6


def test_vade_comes_back_to_what_it_has_given_up():
    """Evidence fades: a task that was learnt is found out, however often it failed long ago."""
    own = pool(2)
    old = [visit("t0", 0, version=0) for _ in range(30)]
    new = [visit("t1", 4, version=300) for _ in range(5)]
    forgetful, stubborn = (
        [make_selector("vade", told, own).choose(number, 1, old + new)[0].task for number in range(200)]
        for told in ({}, {"visit_decay": 1, "version_decay": 1})
    )
    assert forgetful.count("t0") > 20
    assert stubborn.count("t0") == 0


def test_dars_doubles_what_hard_tasks_get_and_keeps_the_turns():
    visits = play("dars", RATES, 72)[24:]
    sizes = {
        task: {item.size for item in visits if item.task in tasks}
        for task, tasks in (("hard", HARD), ("easy", EASY))
    }
    assert sizes == {"hard": {32}, "easy": {8}}
    assert [item.task for item in play("dars", RATES, 72)] == [
        item.task for item in play("uniform", RATES, 72)
    ]
    assert share(visits, MIDDLE) > share(visits, EASY)


def test_dart_saves_rollouts_of_tasks_that_succeed():
    visits = play("dart", RATES, 72)[24:]
    assert {item.size for item in visits if item.task in EASY} == {2}
    assert {item.size for item in visits if item.task in HARD} == {8}


def test_xrpo_spends_on_spread_and_not_on_what_is_certain():
    visits = play("xrpo", RATES, 240, at_once=4)[48:]
    assert share(visits, MIDDLE) > 0.4
    certain = play("xrpo", RATES, 240, at_once=4, settings={"bonus": 0.0})[48:]
    assert share(certain, MIDDLE) > share(visits, MIDDLE)


def test_gdro_draws_bins_evenly_however_few_tasks_they_have():
    """Two tasks of 26 are hard: their bin is one of two."""
    rates = np.array([0.0] * 2 + [1.0] * 24)
    visits = play("gdro", rates, 400)[100:]
    hard = [item for item in visits if item.task in ("t0", "t1")]
    assert 0.4 < len(hard) / len(visits) < 0.65


def test_gdro_learns_to_give_more_rollouts_to_bins_whose_rewards_vary():
    """Of a size J is p(1-p)/n: what a bin of certain tasks gets does not matter, and one that varies wants
    more.
    """
    rates = np.array([0.0] * 8 + [0.5] * 8)
    visits = play("gdro", rates, 1600, settings={"rate": 5.0, "mix": 0.05}, per_step=8, at_once=8)[800:]
    mean = {
        task: np.mean([item.size for item in visits if (int(item.task[1:]) >= 8) == task])
        for task in (True, False)
    }
    assert mean[True] > mean[False] + 1
