"""Beliefs about tasks, open groups, and the choice of the best."""

import numpy as np
import pytest

from harnessgym.scheduling.selectors.difficulty import beliefs, best, open_groups, success
from harnessgym.store.task_history import Visit
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


def test_rewards_are_clipped_to_successes():
    assert success(Visit("t", 4, 0, (-1.0, 0.25, 0.5, 7.0))) == 1.75
    assert success(Visit("t", 4, 0)) == 0


def test_without_visits_every_task_has_the_prior():
    known = beliefs(pool(3), [], prior=2.0)
    assert known.alpha_N.tolist() == known.beta_N.tolist() == [2.0, 2.0, 2.0]
    assert known.mean_N.tolist() == [0.5, 0.5, 0.5]


def test_a_visit_counts_for_its_task_only():
    known = beliefs(pool(3), [visit("t1", 6)])
    assert known.alpha_N.tolist() == [1, 7, 1]
    assert known.beta_N.tolist() == [1, 3, 1]
    assert known.mean_N[1] == pytest.approx(0.7)


def test_tasks_that_are_not_in_the_pool_and_open_visits_do_not_count():
    known = beliefs(pool(1), [visit("gone", 8), Visit("t0", 8, 0, open=True)])
    assert (known.alpha_N[0], known.beta_N[0]) == (1, 1)


def test_evidence_decays_on_each_further_visit_of_the_task():
    visits = [visit("t0", 8), visit("t1", 8), visit("t0", 0)]
    known = beliefs(pool(2), visits, visit_decay=0.5)
    assert known.alpha_N.tolist() == [1 + 4, 1 + 8]
    assert known.beta_N.tolist() == [1 + 8, 1]


def test_evidence_decays_with_every_version_since():
    visits = [visit("t0", 8, version=0), visit("t1", 8, version=2)]
    assert beliefs(pool(2), visits, version_decay=0.5).alpha_N.tolist() == [1 + 2, 1 + 8]


def test_open_groups_are_counted_by_task():
    visits = [Visit("t1", 8, 0, open=True)] * 2 + [Visit("gone", 8, 0, open=True), visit("t0", 1)]
    assert open_groups(pool(3), visits).tolist() == [0, 2, 0]


def test_the_best_are_those_with_the_fewest_open_groups_then_the_highest_score():
    scores = np.array([0.1, 0.9, 0.5])
    assert best(scores, np.array([0, 1, 0]), 4) == [2, 0, 1, 2]
    assert best(scores, np.array([0, 0, 0]), 0) == []


def test_equal_scores_are_chosen_in_order():
    assert best(np.zeros(3), np.zeros(3, dtype=np.int64), 3) == [0, 1, 2]
