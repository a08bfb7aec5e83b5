"""A past success beside a group that failed: when, which, how often, and what the books say."""

import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from sqlalchemy import func, select

from harnessgym.errors import ConfigError
from harnessgym.store import TraceStore, policies
from harnessgym.store.tables import advantages, groups, rollouts, trained
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model

HERE = "tests.trainers.test_success_pool"
FAILED, MIXED = [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def make(tmp_path, model):
    """`make(rewards, **settings)`: a run of one group a step with these groups recorded, and its store."""
    stores = []

    def new(*rewards, versions=(), **settings):
        told = {"groups_per_step": 1, "steps": 9, "max_staleness": 3, "success_pool": 1} | settings
        folder = make_run(tmp_path / f"run{len(stores)}", model, **told)
        for ordinal, own in enumerate(rewards):
            record_groups(folder, [ordinal], (versions or [0] * len(rewards))[ordinal], {ordinal: own})
        stores.append(TraceStore.open(folder.store_url()))
        return folder, stores[-1]

    yield new
    for store in stores:
        store.close()


def by_place(rewards):
    """Advantages that are not zero, whatever the rewards."""
    return np.arange(len(rewards)) - 1.0


def step(learner):
    """One step; the ordinals and slots of all rollouts it trained, the borrowed ones last."""
    group = list(learner.arriving())
    metrics = learner.train_step(group)
    learner.settle()
    return [member.rollout_id for item in group for member in item.group.members], metrics


def places(store, rollout_ids):
    query = select(rollouts.c.id, groups.c.ordinal, rollouts.c.slot).join(
        groups, groups.c.id == rollouts.c.group_id
    )
    known = {row[0]: (row[1], row[2]) for row in store.read(lambda conn: conn.execute(query).all())}
    return [known[each] for each in rollout_ids]


def test_a_failed_group_is_trained_with_the_newest_success_of_its_task(make):
    folder, store = make(MIXED, [1.0, 0.0, 1.0], FAILED)
    learner = learner_of(folder, store)
    taken = [step(learner) for _ in range(3)]
    assert [places(store, ids)[3:] for ids, _ in taken] == [[], [], [(1, 0)]]
    assert [metrics["borrowed"] for _, metrics in taken] == [0, 0, 1]
    assert taken[2][1]["reward"] == 0.0, "the group's own"
    assert taken[2][1]["signal"] == 1.0
    assert taken[2][1]["grad_norm"] > 0
    assert verify(store).findings == ()
    often = Counter(store.read(lambda conn: conn.execute(select(trained.c.rollout_id)).scalars().all()))
    assert sorted(often.values()) == [1] * 8 + [2]


@pytest.mark.parametrize("advantage", ["gdpo", "hgpo", "mc_grpo", "rloo", "ui_s1"])
def test_a_borrowed_success_is_one_of_the_group_for_every_estimator(make, advantage):
    folder, store = make(MIXED, FAILED, advantage=advantage)
    learner = learner_of(folder, store)
    assert [len(step(learner)[0]) for _ in range(2)] == [3, 4]
    query = (
        select(trained.c.rollout_id, func.max(advantages.c.value), func.min(advantages.c.value))
        .join(advantages, advantages.c.trained_id == trained.c.id)
        .where(trained.c.version == 2)
        .group_by(trained.c.rollout_id)
    )
    found = store.read(lambda conn: conn.execute(query).all())
    ((_, best, _),) = [
        row
        for row, (ordinal, _) in zip(found, places(store, [row[0] for row in found]), strict=True)
        if not ordinal
    ]
    assert best > 0
    assert max(row[1] for row in found if row[1] != best) <= 0
    assert verify(store).findings == ()


def test_a_failed_group_that_teaches_by_itself_needs_none(make):
    """Its estimator sees more in it than rewards; without that the group would have one."""
    for settings, taken in (({"advantage": f"{HERE}:by_place"}, [3, 3]), ({}, [3, 4])):
        folder, store = make(MIXED, FAILED, **settings)
        learner = learner_of(folder, store)
        made = [step(learner) for _ in range(2)]
        assert [len(ids) for ids, _ in made] == taken
        assert [metrics["signal"] for _, metrics in made] == [1.0, 1.0]


def test_a_group_with_a_borrowed_success_is_not_replaced(make):
    """It is decided before refills look for a signal; a group that finds none is given up."""
    folder, store = make(MIXED, FAILED, FAILED, MIXED, zero_signal="refill")
    learner = learner_of(folder, store)
    made = [step(learner) for _ in range(3)]
    assert [(len(ids), metrics["no_signal"]) for ids, metrics in made] == [(3, 0), (4, 0), (3, 1)]


def test_a_success_is_not_borrowed_more_often_than_allowed(make):
    folder, store = make(MIXED, FAILED, FAILED, FAILED, success_pool=2)
    learner = learner_of(folder, store)
    assert [len(step(learner)[0]) for _ in range(4)] == [3, 4, 4, 3]
    assert verify(store).findings == ()


def test_a_success_that_is_too_old_stays_where_it_is(make):
    folder, store = make(MIXED, FAILED, FAILED, versions=(0, 0, 1), max_staleness=1, success_pool=5)
    learner = learner_of(folder, store)
    assert [len(step(learner)[0]) for _ in range(3)] == [3, 4, 3]
    assert verify(store).findings == ()


def test_two_groups_of_a_step_borrow_two_successes(make):
    folder, store = make(MIXED, [1.0, 0.0, 1.0], FAILED, FAILED, groups_per_step=2)
    learner = learner_of(folder, store)
    step(learner)
    ids, metrics = step(learner)
    assert metrics["borrowed"] == 2
    assert len(set(ids)) == 8
    assert [place for place in places(store, ids) if place[0] < 2] == [(1, 0), (1, 2)]


def test_without_a_pool_or_a_success_a_failed_group_stays_as_it_is(make):
    for rewards, settings in (((MIXED, FAILED), {"success_pool": 0}), ((FAILED, FAILED), {})):
        folder, store = make(*rewards, **settings)
        learner = learner_of(folder, store)
        assert [len(step(learner)[0]) for _ in range(2)] == [3, 3]


def test_groups_that_all_succeed_or_differ_need_none(make):
    folder, store = make(MIXED, [1.0, 1.0, 1.0], [0.2, 0.0, 0.1])
    learner = learner_of(folder, store)
    assert [len(step(learner)[0]) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_trainer_that_lost_its_last_step_borrows_the_same_again(make, lost):
    """The step that is lost may have trained the success, borrowed it, or come after."""
    rewards = (MIXED, FAILED, FAILED, FAILED)
    weights = []
    for interrupted in (False, True):
        folder, store = make(*rewards)
        learner = learner_of(folder, store)
        for number in range(1, 5):
            step(learner)
            if interrupted and number == lost:
                shutil.rmtree(folder.checkpoints / f"step-{number:06d}")
                learner = learner_of(folder, store)
                step(learner)
        assert verify(store).findings == ()
        weights.append(learner.trained_policy.policy.published())
        chain = store.read(lambda conn, policy=learner.policy_id: policies.versions(conn, policy))
        assert len([item for item in chain if not item.orphaned]) == 5
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_what_a_pool_cannot_go_with_is_refused(tmp_path, model):
    for settings in ({"max_staleness": 0}, {"reward_shuffle": True}):
        with pytest.raises(ConfigError, match="success_pool needs"):
            make_run(tmp_path / "run", model, success_pool=1, **settings)
