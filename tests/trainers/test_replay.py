"""Groups that are trained again, by the real trainer on a real store, whatever is killed and lost in
between.
"""

import json
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.store import TraceStore, rollouts, runs
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.store.tables import trained
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model
from trainers import checkpoint

DIFFERENT = [0.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def step(learner):
    """One step that the store knows, and the groups that it took: their ordinals."""
    groups = list(learner.arriving())
    learner.train_step(groups)
    learner.settle()
    return [item.group.ordinal for item in groups]


def often(store):
    """How often each rollout is in the ledger, whatever became of the versions."""
    return Counter(store.read(lambda conn: conn.execute(select(trained.c.rollout_id)).scalars().all()))


def test_a_group_is_trained_again_until_it_is_too_old_or_was_often_enough(tmp_path, model):
    folder = make_run(tmp_path / "run", model, steps=9, max_staleness=2, reuse=1, when_stale="drop")
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        taken = []
        for version in range(4):
            record_groups(folder, [2 * version, 2 * version + 1], version, dict.fromkeys(range(9), DIFFERENT))
            taken.append(step(learner))
        assert taken[0] == [0, 1]
        assert taken[1][0] in (0, 1)
        assert taken[1][1] == 2
        assert max(often(store).values()) == 2
        assert verify(store).findings == ()
        lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
        assert [line["replayed"] for line in lines] == [0, 1, 1, 1]
        assert all(line["off_policy"] > 0 for line in lines[1:])


def test_without_reuse_and_without_a_signal_nothing_is_trained_again(tmp_path, model):
    same = {ordinal: [1.0, 1.0, 1.0] for ordinal in range(8)}
    for name, options, rewards in (("a", {}, dict.fromkeys(range(8), DIFFERENT)), ("b", {"reuse": 3}, same)):
        folder = make_run(tmp_path / name, model, max_staleness=4, **options)
        record_groups(folder, range(4), rewards=rewards)
        with TraceStore.open(folder.store_url()) as store:
            learner = learner_of(folder, store)
            assert [step(learner), step(learner)] == [[0, 1], [2, 3]]


def test_groups_that_would_get_too_old_meanwhile_come_before_those_that_were_trained(tmp_path, model):
    folder = make_run(tmp_path / "run", model, steps=9, max_staleness=1, reuse=1)
    record_groups(folder, range(4), rewards=dict.fromkeys(range(9), DIFFERENT))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        assert [step(learner), step(learner)] == [[0, 1], [2, 3]]
        states = store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train"))
        assert states == {"consumed": 4}


def test_a_group_whose_second_training_is_lost_stays_consumed_and_one_whose_only_training_is_lost_comes_back(
    tmp_path, model
):
    folder = make_run(tmp_path / "run", model, steps=9, max_staleness=4, reuse=1)
    record_groups(folder, range(3), rewards=dict.fromkeys(range(9), DIFFERENT))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        first, second = step(learner), step(learner)
        assert (first, second) == ([0, 1], [0, 2])
        run = store.read(runs.only).id
        assert store.read(lambda conn: rollouts.group_states(conn, run, "train")) == {"consumed": 3}
        shutil.rmtree(folder.checkpoints / "step-000002")
        learner = learner_of(folder, store)
        assert store.read(lambda conn: rollouts.group_states(conn, run, "train")) == {
            "consumed": 2,
            "complete": 1,
        }
        assert step(learner) == second
        assert verify(store).findings == ()


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    eta=st.integers(1, 3),
    reuse=st.integers(1, 2),
    per_step=st.integers(2, 4),
    when_stale=st.sampled_from(["wait", "drop", "requeue"]),
    pool=st.integers(0, 2),
)
def test_whatever_is_killed_and_lost_nothing_is_trained_too_often_or_too_late(
    model, seed, eta, reuse, per_step, when_stale, pool
):
    draw, steps, ordinal = random.Random(seed), 5, 0
    with tempfile.TemporaryDirectory() as made:
        options = {
            "reuse": reuse,
            "max_staleness": eta,
            "groups_per_step": per_step,
            "when_stale": when_stale,
        }
        options["success_pool"] = pool
        folder = make_run(Path(made) / "run", model, steps=steps, checkpoints="blocking", **options)
        with TraceStore.open(folder.store_url()) as store:
            learner, went_back = learner_of(folder, store), 0
            while learner.step < steps:
                late = max(0, learner.version - draw.randint(0, eta + 1))
                for number, version in ((draw.randint(0, 2), late), (per_step, learner.version)):
                    unfinished = [ordinal] if when_stale != "wait" and number and draw.random() < 0.2 else []
                    record_groups(folder, range(ordinal, ordinal + number), version, unfinished=unfinished)
                    ordinal += number
                record_groups(folder, [ordinal], learner.version)  # in place of one that goes on running
                ordinal += 1
                step(learner)
                if draw.random() < 0.4:
                    if (
                        len(checkpoint.steps(folder.checkpoints)) > 1
                        and went_back < 2
                        and draw.random() < 0.5
                    ):
                        shutil.rmtree(folder.checkpoints / f"step-{learner.step:06d}")
                        went_back += 1
                    learner = learner_of(folder, store)
            assert verify(store).findings == ()
            graded = (
                select(rollouts_table.c.status)
                .join(trained, trained.c.rollout_id == rollouts_table.c.id)
                .distinct()
            )
            assert store.read(lambda conn: conn.execute(graded).scalars().all()) == ["finished"]
            assert (
                max(store.read(lambda conn: conn.execute(select(trained.c.max_staleness)).scalars())) <= eta
            )
