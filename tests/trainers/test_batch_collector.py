"""Batches from a real store: order, age, groups without a signal, and what a killed trainer finds again."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from harnessgym.outcome.failure import StopReason
from harnessgym.scheduling.consumption import Replayable
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, backlog, rollouts, runs
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import make_run, record_groups, record_rollout, save_model
from trainers.batch_collector import BatchCollector
from trainers.policies.loading import load_policy

SAME = [1.0, 1.0, 1.0]
CHAIN = VersionChain(())


@pytest.fixture
def make(tmp_path):
    """`make(**trainer)`: a run's folder, its store and a `BatchCollector` on it; batches have two groups."""
    model, stores = save_model(tmp_path / "model"), []

    def make(**trainer):
        folder = make_run(tmp_path / f"run-{len(stores)}", model, **trainer)
        stores.append(TraceStore.open(folder.store_url()))
        return folder, stores[-1], again(folder, stores[-1])

    yield make
    for store in stores:
        store.close()


def again(folder, store):
    """A `BatchCollector` that knows nothing yet, as in a new process."""
    return BatchCollector(store, store.read(runs.only).id, folder.config())


def ordinals(collector, version=0, busy=()):
    return [item.group.ordinal for item in collector.groups(version, CHAIN, frozenset(busy))]


def test_whatever_is_complete_is_taken_where_order_does_not_count(make):
    for policy in ("drop", "requeue"):
        folder, _, collector = make(when_stale=policy)
        record_groups(folder, range(4), unfinished=(0, 2))
        assert ordinals(collector) == [1, 3]


def test_waiting_streams_the_groups_before_a_gap_and_the_rest_behind_it(make):
    folder, store, collector = make(stream=True)
    record_groups(folder, range(3), unfinished=(1,))
    arriving = collector.groups(0, CHAIN, frozenset())
    assert next(arriving).group.ordinal == 0
    run = store.read(runs.only).id
    gap = store.read(lambda conn: backlog.standing(conn, run))[1]
    store.write(lambda conn: rollouts.set_group_state(conn, gap.id, "dropped"))
    assert collector.early == 0
    assert [item.group.ordinal for item in arriving] == [2]
    assert collector.early == 0, "it never waited"


def test_groups_handed_out_before_the_last_one_was_complete_are_counted(make):
    folder, store, collector = make(periodic=True)
    record_groups(folder, range(2), unfinished=(0,))
    run, looks = store.read(runs.only).id, []

    def looking():
        """At the third look the other group has become complete."""
        looks.append(collector.early)
        if len(looks) == 3:
            (gap,) = [
                item for item in store.read(lambda conn: backlog.standing(conn, run)) if not item.complete
            ]
            store.write(lambda conn: rollouts.set_group_state(conn, gap.id, "complete"))

    assert [item.group.ordinal for item in collector.groups(0, CHAIN, frozenset(), looking)] == [1, 0]
    assert looks == [0, 0, 1]
    assert collector.early == 1


def test_groups_of_a_step_on_its_way_are_left_alone(make):
    folder, store, collector = make()
    record_groups(folder, range(4))
    run = store.read(runs.only).id
    busy = [item.id for item in store.read(lambda conn: backlog.standing(conn, run))][:2]
    assert ordinals(collector, busy=busy) == [2, 3]


@pytest.mark.parametrize(
    ("policy", "reason"), [("wait", "too_stale"), ("drop", "too_stale"), ("requeue", "requeued")]
)
def test_what_is_too_stale_is_given_up_once_and_its_tokens_are_excluded(make, policy, reason):
    folder, store, collector = make(when_stale=policy, max_staleness=1)
    record_groups(folder, [0], version=0)
    record_groups(folder, [1, 2], version=2)
    assert ordinals(collector, version=2) == [1, 2]
    assert collector.given_up(2) == {reason: 1}
    assert ordinals(again(folder, store), version=2) == [1, 2]
    assert collector.given_up(2) == {reason: 1}
    run = store.read(runs.only).id
    assert len(store.read(lambda conn: backlog.requeued(conn, run, 9))) == (policy == "requeue")
    query = "SELECT DISTINCT reason FROM exclusions"
    assert store.read(lambda conn: conn.exec_driver_sql(query).scalars().all()) == ["too_stale"]


def test_groups_without_a_signal_count_unless_they_are_refilled(make):
    for zero_signal, expected in (("leave_out", [0, 1]), ("refill", [0, 3])):
        folder, _, collector = make(zero_signal=zero_signal)
        record_groups(folder, range(4), rewards={1: SAME, 2: SAME})
        assert ordinals(collector) == expected
        assert collector.given_up(0) == ({} if zero_signal == "leave_out" else {"no_signal": 2})


def test_what_teaches_is_for_the_estimator_to_say(make):
    """Refills and replays go by it, not by the rewards: here the groups of even ordinals teach, whose
    rewards are equal.
    """
    folder, store, _ = make(zero_signal="refill", reuse=1, max_staleness=2)
    record_groups(folder, range(4), rewards={0: SAME, 2: SAME})
    collector = BatchCollector(
        store, store.read(runs.only).id, folder.config(), lambda group: group.group.ordinal % 2 == 0
    )
    assert ordinals(collector) == [0, 2]
    assert collector.given_up(0) == {"no_signal": 1}
    standing = store.read(lambda conn: backlog.standing(conn, collector.run_id))
    assert [item.ordinal for item in standing] == [0, 2, 3]
    trained = [
        Replayable(item.id, item.ordinal, 1, item.ordinal - 2) for item in standing[1:]
    ]  # 3 is asked first
    record_groups(folder, range(4, 8))
    arriving = collector.groups(0, CHAIN, frozenset(item.id for item in standing), trained=trained)
    assert [item.group.ordinal for item in arriving] == [2, 4]
    assert collector.replayed == 1


@pytest.mark.parametrize("stream", [True, False])
def test_refills_are_bounded_and_the_bound_outlives_a_kill(make, stream):
    folder, store, collector = make(zero_signal="refill", refill_batches=1, stream=stream)
    record_groups(folder, range(5), rewards=dict.fromkeys(range(5), SAME))
    assert next(collector.groups(0, CHAIN, frozenset())).group.ordinal == 2
    for _ in range(2):
        assert ordinals(again(folder, store)) == [2, 3]
    assert collector.given_up(0) == {"no_signal": 2}


@pytest.mark.parametrize(("policy", "reason"), [("drop", "too_stale"), ("requeue", "requeued")])
def test_what_runs_and_can_never_be_trained_is_stopped(make, policy, reason):
    """Of two open groups only one has tokens that are too old; of its rollouts one has ended, and two run."""
    folder, store, collector = make(when_stale=policy, max_staleness=1)
    record_groups(folder, [0, 1], version=0, unfinished=(0, 1))
    run = store.read(runs.only).id
    first = store.read(lambda conn: backlog.standing(conn, run))[0].id
    query = (
        select(rollouts_table.c.id).where(rollouts_table.c.group_id == first).order_by(rollouts_table.c.slot)
    )
    members = store.read(lambda conn: conn.execute(query).scalars().all())
    row = SimpleNamespace(id=members[0], slot=0)
    record_rollout(store, load_policy(Path(folder.config().policy.path)), row, 0, 0)
    outcome = RolloutOutcome(members[0], StopReason.FINISHED, "valid", {"reward": 1.0})
    assert store.write(lambda conn: rollouts.finish(conn, outcome))
    record_groups(folder, [2, 3], version=2)
    assert ordinals(collector, version=2) == [2, 3]
    assert collector.given_up(2) == {reason: 1}
    assert [item.ordinal for item in store.read(lambda conn: backlog.standing(conn, run))] == [1, 2, 3]
    statuses = (
        select(rollouts_table.c.status)
        .where(rollouts_table.c.group_id == first)
        .order_by(rollouts_table.c.slot)
    )
    assert store.read(lambda conn: conn.execute(statuses).scalars().all()) == [
        "finished",
        "cancelled",
        "cancelled",
    ]
    assert store.read(lambda conn: rollouts.not_running(conn, members, "node")) == members
    assert verify(store).kinds <= {"span_version"}, "besides versions that nobody published here"
    assert not store.write(lambda conn: backlog.stop(conn, first, reason, 2))


def test_in_order_nothing_is_stopped_that_runs(make):
    folder, store, collector = make(max_staleness=1, stream=True)
    record_groups(folder, [0], version=0)
    record_groups(folder, [1], version=0, unfinished=(1,))
    arriving = collector.groups(1, CHAIN, frozenset())
    assert next(arriving).group.ordinal == 0
    assert len(store.read(lambda conn: backlog.standing(conn, store.read(runs.only).id))) == 2
