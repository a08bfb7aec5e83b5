import random

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.admission import Admission, groups_holding, serving_step
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store.policies import PolicyVersion


def admission(**changes):
    values = {
        "max_staleness": 1,
        "groups_per_batch": 8,
        "serving_step": 0,
        "submitted": 0,
        "running": 0,
        "max_running": 99,
        "total": 999,
    }
    return Admission(**(values | changes))


def version(number, parent, *, orphaned=False):
    return PolicyVersion(number, parent, "full", "", number, "", 0, committed=True, orphaned=orphaned)


def test_synchronous_training_admits_one_batch():
    assert admission(max_staleness=0).capacity() == 8
    assert admission(max_staleness=0, submitted=8).capacity() == 0
    assert admission(max_staleness=0, submitted=8, serving_step=1).capacity() == 8


def test_the_other_limits_hold():
    assert admission(max_running=3, running=2).capacity() == 1
    assert admission(total=10, submitted=9).capacity() == 1
    assert admission(submitted=500).capacity() == 0


@given(st.integers(0, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_no_consumed_group_is_staler_than_allowed(max_staleness, batch, seed):
    """A random schedule: groups finish in any order, workers lag behind the trainer, batches are consumed
    in order.
    """
    draw = random.Random(seed)
    total = 12 * batch
    consumed_steps, serving = 0, 0
    born: dict[int, int] = {}
    open_groups: list[int] = []
    complete: set[int] = set()
    while consumed_steps < 12:
        limits = {"max_staleness": max_staleness, "groups_per_batch": batch, "serving_step": serving}
        counts = {
            "submitted": len(born),
            "running": len(open_groups),
            "max_running": draw.randint(1, 9),
            "total": total,
        }
        for _ in range(Admission(**limits, **counts).capacity()):
            open_groups.append(len(born))
            born[len(born)] = serving
        assert open_groups or complete, "admission starves the trainer"
        if open_groups and draw.random() < 0.8:
            complete.add(open_groups.pop(draw.randrange(len(open_groups))))
        wanted = range(consumed_steps * batch, (consumed_steps + 1) * batch)
        if all(group in complete for group in wanted) and draw.random() < 0.7:
            assert max(consumed_steps - born[group] for group in wanted) <= max_staleness
            consumed_steps += 1
        if draw.random() < 0.3 or not open_groups:
            serving = draw.randint(serving, consumed_steps) if open_groups else consumed_steps


def test_the_slowest_serving_worker_counts_and_an_orphaned_version_as_the_one_it_forked_from():
    chain = VersionChain([version(0, None), version(1, 0), version(2, 1, orphaned=True), version(3, 1)])
    assert serving_step([("ready", 3), ("draining", 1)], chain.depth) == 1
    assert serving_step([("ready", 3), ("dead", 0), ("starting", 0)], chain.depth) == 2
    assert serving_step([("updating", 2)], chain.depth) == 1, (
        "version 2 counts as version 1, which it forked from"
    )
    assert serving_step([("dead", 0)], chain.depth) is None


def test_rollouts_fill_groups():
    assert [groups_holding(rollouts, 4) for rollouts in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_over_launching_lets_so_many_batches_stand_whatever_eta():
    assert admission(max_staleness=9, over_launch=1.5).capacity() == 12
    assert admission(max_staleness=1, over_launch=3, submitted=8).capacity() == 16
    assert admission(max_staleness=1, over_launch=2, submitted=20, serving_step=1).capacity() == 4
    assert admission(groups_per_batch=10, over_launch=1.1).capacity() == 11, "a tenth of ten groups is one"


def test_with_replays_fewer_groups_stand_but_never_fewer_than_a_batch():
    after = {
        "consumed": 24,
        "trained_step": 4,
        "serving_step": 4,
        "submitted": 24,
        "max_staleness": 3,
        "total": 8 * 99,
    }
    assert admission(**after).capacity() == 4 * 8
    assert admission(**after, replayed=4).capacity() == 4 * 4
    assert admission(**(after | {"max_staleness": 0}), replayed=4).capacity() == 8
    assert admission(**(after | {"total": 5 * 8}), replayed=4).capacity() == 8, (
        "the last batch may find nothing to replay"
    )
    assert admission(**(after | {"total": 4 * 8}), replayed=4).capacity() == 0
    assert admission(**(after | {"serving_step": 2}), replayed=4).capacity() == 2 * 4
