"""The trainers of two policies of one run: one batch for both, whoever is ahead, dies, or begins again."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from sqlalchemy import select

from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, backlog, policies, rollouts
from harnessgym.store.tables import exclusions, trained
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import learner_of, make_run, record_groups, record_rollout, save_model
from trainers.policies.loading import load_policy

NAMES = ("", "helper")
SIZE, SAMPLED = 3, 6


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def make(tmp_path, model):
    """`make(**trainer)`: a run of two policies, its store, and what starts a trainer."""
    stores = []

    def new(**trainer):
        folder = make_run(tmp_path / f"run{len(stores)}", model, ("helper",), **trainer)
        stores.append(TraceStore.open(folder.store_url()))
        return folder, stores[-1]

    yield new
    for store in stores:
        store.close()


def step(learner):
    """One step of a trainer; returns the ordinals of the groups that it took."""
    groups = list(learner.arriving())
    learner.train_step(groups)
    learner.settle()
    return [item.group.ordinal for item in groups]


def states(store, learner):
    return store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train"))


def test_every_policy_trains_the_same_groups_on_its_own_tokens(make):
    folder, store = make()
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    record_groups(folder, range(2), further={"helper": 0})
    assert step(helper) == [0, 1]
    assert states(store, helper) == {"complete": 2}
    record_groups(folder, (2, 3), further={"helper": 0})
    assert step(first) == [0, 1]
    assert states(store, first) == {"consumed": 2, "complete": 2}
    query = select(trained.c.policy_id, trained.c.tokens).order_by(trained.c.policy_id, trained.c.rollout_id)
    tokens = {}
    for policy_id, count in store.read(lambda conn: conn.execute(query).all()):
        tokens.setdefault(policy_id, []).append(count)
    assert tokens[first.policy_id] == [SAMPLED] * 2 * SIZE
    assert (
        tokens[helper.policy_id] == [0, SAMPLED, SAMPLED] * 2
    )  # the first rollout of a group never asked it
    assert not verify(store).findings
    weights = [learner.trained_policy.policy.published() for learner in (first, helper)]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    newest = [
        store.read(lambda conn, one=one: policies.latest(conn, one.policy_id)) for one in (first, helper)
    ]
    assert [version.version for version in newest] == [1, 1]
    assert newest[0].path != newest[1].path


@pytest.mark.parametrize("stream", [False, True])
def test_a_trainer_that_is_killed_takes_what_the_others_took(make, stream):
    """`drop` takes whatever is complete: which groups is settled by who comes first, for all."""
    folder, store = make(when_stale="drop", stream=stream)
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    record_groups(folder, range(4), unfinished=(0, 2), further={"helper": 0})
    gathered = [item.group.ordinal for item in first.arriving()]
    assert gathered == [1, 3]
    record_groups(folder, (4, 5), further={"helper": 0})
    assert step(helper) == [1, 3]
    assert step(learner_of(folder, store)) == [1, 3]
    assert step(learner_of(folder, store, "helper")) == [4, 5]
    assert step(learner_of(folder, store)) == [4, 5]
    assert states(store, first) == {"consumed": 4, "open": 2}
    assert not verify(store).findings


def test_a_group_is_too_stale_for_all_as_soon_as_it_is_for_one(make):
    folder, store = make(max_staleness=0, when_stale="drop")
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    record_groups(folder, range(2), further={"helper": 0})
    assert step(first) == step(helper) == [0, 1]
    record_groups(folder, (2,), version=1, further={"helper": 0})
    record_groups(folder, (3, 4), version=1, further={"helper": 1})
    assert step(first) == step(helper) == [3, 4]
    assert first.collector.given_up(1) == helper.collector.given_up(1) == {"too_stale": 1}
    assert not verify(store).findings


@pytest.mark.parametrize(("when_stale", "reason"), [("drop", "too_stale"), ("requeue", "requeued")])
def test_what_runs_and_is_too_old_for_one_policy_is_stopped(make, when_stale, reason):
    """Of two open groups only one has tokens of the helper that are too old; of its rollouts one has
    ended, and two run.
    """
    folder, store = make(max_staleness=0, when_stale=when_stale)
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    record_groups(folder, range(2), further={"helper": 0})
    record_groups(folder, (2, 3), unfinished=(2, 3), further={"helper": 0})
    standing = store.read(lambda conn: backlog.standing(conn, first.run.id))
    old = next(item.id for item in standing if item.ordinal == 2)
    query = (
        select(rollouts_table.c.id).where(rollouts_table.c.group_id == old).order_by(rollouts_table.c.slot)
    )
    members = store.read(lambda conn: conn.execute(query).scalars().all())
    policy = load_policy(folder.root.parent / "model")
    record_rollout(store, policy, SimpleNamespace(id=members[0], slot=0), 2, 0, helper.policy_id)
    assert step(first) == step(helper) == [0, 1]
    record_groups(folder, (4, 5), version=1, further={"helper": 1})
    assert step(helper) == step(first) == [4, 5]
    assert helper.collector.given_up(1) == {reason: 1}
    assert states(store, first) == {"consumed": 4, "dropped": 1, "open": 1}
    statuses = select(rollouts_table.c.status).where(rollouts_table.c.group_id == old).distinct()
    assert store.read(lambda conn: conn.execute(statuses).scalars().all()) == ["cancelled"]
    assert not verify(store).findings


def test_groups_without_a_signal_are_given_up_once_for_all(make):
    folder, store = make(zero_signal="refill", when_stale="drop")
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    record_groups(folder, range(4), rewards={0: [1.0] * SIZE, 2: [0.0] * SIZE}, further={"helper": 0})
    assert step(helper) == step(first)
    assert states(store, first)["dropped"] == 2
    assert states(store, first)["consumed"] == 2


def test_a_policy_that_goes_back_a_step_takes_the_same_batches_again(make):
    """Of what it sampled under the version that was given up, what is too old now is excluded; the others
    train on theirs.
    """
    folder, store = make(max_staleness=0)
    first, helper = (learner_of(folder, store, name) for name in NAMES)
    for number in range(3):
        record_groups(folder, (2 * number, 2 * number + 1), version=number, further={"helper": number})
        assert step(first) == step(helper) == [2 * number, 2 * number + 1]
    checkpoints = RunFolder(folder.root, "helper").checkpoints
    shutil.rmtree(checkpoints / "step-000003")
    again = learner_of(folder, store, "helper")
    assert (again.step, again.version) == (2, 2)
    assert states(store, first) == {"consumed": 4, "complete": 2}
    assert step(again) == [4, 5]
    assert again.version == 4
    assert states(store, first) == {"consumed": 6}
    record_groups(folder, (6, 7), version=3, further={"helper": 3})  # by the version that was given up
    assert store.read(lambda conn: backlog.batch(conn, first.run.id, 4)) == []
    first.collector.options = first.collector.options.model_copy(update={"max_staleness": 1})
    assert step(first) == step(again) == [6, 7]
    reasons = store.read(lambda conn: conn.execute(select(exclusions.c.reason).distinct()).scalars().all())
    assert reasons == ["too_stale"]
    assert store.read(lambda conn: rollouts.group_states(conn, first.run.id, "train")) == {"consumed": 8}
    assert not verify(store).findings
