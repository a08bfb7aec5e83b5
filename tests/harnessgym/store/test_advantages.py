"""Advantages beside the ledger: written with a step or not at all, read back by call."""

import pytest
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import StopReason
from harnessgym.store import advantages, calls, ledger, new_id, rollouts, sessions
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.calls import CallOutcome, Segment
from harnessgym.store.ledger import StepRecord, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import calls as calls_table
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.store.tables import trained


@pytest.fixture
def sampled(store, rollout_id, add_call):
    """Two calls of a finished rollout: three tokens, and none yet."""
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={}).id)
    first, second = add_call(session, 0), add_call(session, 1)
    prompt = store.read(
        lambda conn: conn.execute(
            select(calls_table.c.prompt_segment).where(calls_table.c.id == first)
        ).scalar_one()
    )
    said = Segment(new_id(), session, "completion", prompt, (5, 6, 7), (-0.1, -0.2, -0.3))
    store.write(lambda conn: calls.finish(conn, CallOutcome(first, said, (), "a", "stop", None, "e", {}, {})))
    store.write(
        lambda conn: rollouts.finish(
            conn, RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
        )
    )
    return first, second, said.id


@pytest.fixture
def commit(store, rollout_id):
    def commit(version, *ranges):
        policy = store.read(lambda conn: conn.execute(select(rollouts_table.c.policy_id)).scalar_one())
        made = PolicyVersion(version, None, "full", "", version, "", 0, committed=True, orphaned=False)
        record = StepRecord(made, (), (TrainedRollout(rollout_id, 3, 0, tuple(ranges)),), ())
        store.write(lambda conn: ledger.commit_step(conn, policy, record))

    return commit


def test_ranges_are_read_back_by_call_with_their_step(store, rollout_id, sampled, commit):
    first, second, segment = sampled
    commit(
        1,
        AdvantageRange(first, 0, 1, 0.25),
        AdvantageRange(first, 1, 3, -2.0),
        AdvantageRange(second, 0, 1, 9.0),
    )
    commit(2, AdvantageRange(first, 0, 3, 0.0))
    commit(2, AdvantageRange(first, 0, 3, 7.0))
    found = store.read(lambda conn: advantages.of_rollout(conn, rollout_id))
    assert [(item.version, item.start, item.end, item.value) for item in found] == [
        (1, 0, 1, 0.25), (1, 1, 3, -2.0), (2, 0, 3, 0.0),
    ]  # fmt: skip
    assert {(item.call_id, item.segment_id) for item in found} == {(first, segment)}


def test_a_step_whose_advantages_cannot_be_written_is_not_in_the_ledger(store, rollout_id, sampled, commit):
    first, _, _ = sampled
    with pytest.raises(StoreError):
        commit(1, AdvantageRange(first, 0, 2, 1.0), AdvantageRange(first, 0, 3, 1.0))
    assert store.read(lambda conn: conn.execute(select(trained)).all()) == []
    assert store.read(lambda conn: advantages.of_rollout(conn, rollout_id)) == []
    commit(1, AdvantageRange(first, 0, 3, 1.0))
    assert len(store.read(lambda conn: advantages.of_rollout(conn, rollout_id))) == 1
