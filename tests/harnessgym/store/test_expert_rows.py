"""Routed experts are stored with their calls, in both kinds of database."""

import numpy as np
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import DatabaseError

from harnessgym.errors import HarnessGymError, TraceError
from harnessgym.routed_experts import RoutedExperts
from harnessgym.store import expert_rows, removal, rollouts
from harnessgym.store.run_copy import RunCopy
from harnessgym.store.tables import routed_experts
from harnessgym.store.trace_store import TraceStore
from tests.harnessgym.store.recorded_runs import begin_run


def drawn(seed, start, tokens, dtype=np.uint8):
    draw = np.random.default_rng(seed)
    return RoutedExperts(
        start, draw.integers(0, 60_000 if dtype == np.uint16 else 128, (tokens, 4, 8)).astype(dtype)
    )


@pytest.fixture
def recording(store):
    return begin_run(store)


@pytest.fixture
def recorded(recording):
    """A rollout's session of two turns, with the experts of each call by its id."""
    _, (rollout_id, other) = recording.group()
    session = recording.session(rollout_id)
    first = session.call(5, versions=(0, 0, 0), experts=drawn(1, 0, 7))
    second = session.call(2, after=first, versions=(0, 0), experts=drawn(2, 7, 4, np.uint16))
    session.call(2, after=second)
    recording.session(other).call(3, experts=drawn(3, 0, 2))
    return rollout_id, {first: drawn(1, 0, 7), second: drawn(2, 7, 4, np.uint16)}


def test_a_rollout_has_the_experts_of_its_own_calls(store, recorded):
    rollout_id, expected = recorded
    found = store.read(lambda conn: expert_rows.of_rollout(conn, rollout_id))
    assert found.keys() == expected.keys()
    for call_id, routed in found.items():
        assert (routed.start, routed.experts.dtype) == (
            expected[call_id].start,
            expected[call_id].experts.dtype,
        )
        assert np.array_equal(routed.experts, expected[call_id].experts)


def test_bytes_that_were_changed_are_refused(store, recorded):
    change = update(routed_experts).values(tokens=routed_experts.c.tokens + 1)
    store.write(lambda conn: conn.execute(change))
    with pytest.raises(TraceError, match="are not the routed experts of"):
        store.read(lambda conn: expert_rows.of_rollout(conn, recorded[0]))


def count(store):
    return store.read(
        lambda conn: conn.execute(select(func.count()).select_from(routed_experts)).scalar_one()
    )


def test_they_are_removed_with_their_rollout_and_counted(store, recorded):
    removed = store.write(lambda conn: removal.remove(conn, [recorded[0]]))
    assert removed.rows["routed_experts"] == 2
    assert removed.bytes > sum(len(routed.packed().experts) for routed in recorded[1].values())
    assert count(store) == 1


def test_they_are_copied_with_their_run(store, recording, recorded, make_url):
    with TraceStore.open(make_url()) as target:
        copy = store.read(
            lambda source: target.write(
                lambda conn: list(RunCopy(source, conn, recording.run_id).portions()) and None
            )
        )
        assert copy is None
        assert count(target) == 3
        found = target.read(lambda conn: expert_rows.of_rollout(conn, recorded[0]))
        assert all(np.array_equal(found[name].experts, each.experts) for name, each in recorded[1].items())


def test_those_of_a_frozen_rollout_cannot_be_changed(store, recorded):
    freeze = update(rollouts.rollouts).where(rollouts.rollouts.c.id == recorded[0]).values(frozen=True)
    store.write(lambda conn: conn.execute(freeze))
    change = update(routed_experts).values(start=3)
    with pytest.raises((DatabaseError, HarnessGymError), match="frozen"):
        store.write(lambda conn: conn.execute(change))
