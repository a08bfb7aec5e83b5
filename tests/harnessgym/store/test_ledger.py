"""The ledger where groups are trained several times, and steps are lost: on each kind of database."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.store import TraceStore, ledger, policies
from harnessgym.store.durations import GroupLength, lengths
from harnessgym.store.ledger import ExcludedTokens, StepRecord, TrainedGroup, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import exclusions, groups
from harnessgym.store.tables import rollouts as rollouts_table
from tests.harnessgym.store.recorded_runs import begin_run, rows_of_everything
from tests.harnessgym.store.test_backlog import World


class Trained(World):
    """Groups, and steps on them."""

    def __init__(self, store):
        super().__init__(store)
        self.latest, self.numbers = 0, 0
        self.publish(0, None)

    def version(self, number, parent):
        return PolicyVersion(number, parent, "full", "", number, "", 0, committed=True, orphaned=False)

    def publish(self, number, parent):
        self.store.write(lambda conn: policies.publish(conn, self.policy, self.version(number, parent)))

    def train(self, *names, staleness=0):
        """One step; the version it makes."""
        query = select(rollouts_table.c.id).where(rollouts_table.c.group_id.in_(names))
        members = self.store.read(lambda conn: conn.execute(query).scalars().all())
        self.numbers += 1
        shares = tuple(TrainedRollout(member, 4, staleness) for member in members)
        record = StepRecord(self.version(self.numbers, self.latest), names, shares, ())
        for _ in range(2):  # a record may be replayed
            self.store.write(lambda conn: ledger.commit_step(conn, self.policy, record))
        self.latest = self.numbers
        return self.latest

    def go_back(self, version):
        self.latest = version
        return self.store.write(lambda conn: ledger.abandon_after(conn, self.policy, version))

    def states(self):
        return dict(self.store.read(lambda conn: conn.execute(select(groups.c.id, groups.c.state)).all()))

    def trained_into(self, *versions):
        return self.store.read(lambda conn: ledger.trained_into(conn, self.policy, versions))


@pytest.fixture
def world(url):
    with TraceStore.open(url) as store:
        yield Trained(store)


def test_what_was_trained_into_a_version_is_told_once_a_group_with_its_oldest_token(world):
    first, second = world.submit(), world.submit()
    world.train(first, second)
    world.train(first, staleness=1)
    assert world.trained_into(1) == [TrainedGroup(first, 0, 1, 0), TrainedGroup(second, 1, 1, 0)]
    assert world.trained_into(2, 1) == [*world.trained_into(1), TrainedGroup(first, 0, 2, 1)]
    assert world.trained_into() == []


def test_a_group_comes_back_only_if_every_step_that_trained_it_is_lost(world):
    first, second = world.submit(), world.submit()
    world.train(first)
    world.train(first, second)
    assert world.go_back(1) == 1
    assert world.states() == {first: "consumed", second: "complete"}
    world.train(second)
    assert world.go_back(0) == 2
    assert world.states() == {first: "complete", second: "complete"}


def test_lengths_are_those_of_graded_rollouts_group_by_group(world):
    names = [world.submit(), world.submit("open")]
    found = world.store.read(lambda conn: lengths(conn, world.run, 0))
    assert found == [GroupLength(names[0], 0, "complete", 0, 0), GroupLength(names[1], 1, "open", 0, 0)]
    assert world.store.read(lambda conn: lengths(conn, world.run, 1)) == found[1:]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(st.sets(st.integers(0, 4), max_size=3), st.integers(0, 3)), min_size=1, max_size=8
    )
)
def test_a_group_is_consumed_while_a_surviving_step_has_trained_it(world, moves):
    """Each move: a step on some groups, or on none going back so many steps."""
    world = Trained(world.store)  # another run in the same database
    names, alive = [world.submit() for _ in range(5)], dict[int, set[int]]()
    for taken, back in moves:
        if taken:
            alive[world.train(*(names[place] for place in sorted(taken)))] = taken
        else:
            kept = sorted(alive)[: max(0, len(alive) - back)]
            world.go_back(kept[-1] if kept else 0)
            alive = {version: alive[version] for version in kept}
        often = Counter(place for places in alive.values() for place in places)
        states = world.states()
        assert [states[name] for name in names] == [
            "consumed" if often[place] else "complete" for place in range(5)
        ]
        found = Counter(item.ordinal for item in world.trained_into(*alive))
        assert found == often


@pytest.fixture
def recording(store):
    return begin_run(store)


def commit(recording, policy_id, number, rollout_ids, *, group_ids=(), excluded=()):
    """Commit a step that trains 4 tokens of each rollout."""
    shares = tuple(TrainedRollout(rollout_id, 4, 1) for rollout_id in rollout_ids)
    record = StepRecord(recording.version(number, number - 1), group_ids, shares, excluded)
    recording.store.write(lambda conn: ledger.commit_step(conn, policy_id, record))


def finished_group(recording, size=2):
    group_id, ids = recording.group(size)
    recording.finish(ids)
    return group_id, ids


def group_state(recording, group_id):
    query = select(groups.c.state).where(groups.c.id == group_id)
    return recording.store.read(lambda conn: conn.execute(query).scalar_one())


def test_a_step_that_is_committed_again_changes_nothing_whatever_it_says(store, recording):
    group_id, ids = finished_group(recording)
    other, others = finished_group(recording)
    call_id = recording.session(ids[0]).call(versions=(0, 0, 0))
    cut = (ExcludedTokens(ids[0], call_id, 0, 1, "stale"),)
    commit(recording, recording.policy_id, 1, ids, group_ids=(group_id,), excluded=cut)
    before = rows_of_everything(store)
    assert len(before["trained"]) == 2
    assert [row["reason"] for row in before["exclusions"].values()] == ["stale"]
    commit(recording, recording.policy_id, 1, others, group_ids=(other,))
    assert rows_of_everything(store) == before
    assert (group_state(recording, group_id), group_state(recording, other)) == ("consumed", "complete")


def test_a_group_is_consumed_when_every_policy_has_trained_on_it(store, recording):
    other = store.write(lambda conn: policies.register(conn, recording.run_id, "helper"))
    group_id, ids = finished_group(recording)
    commit(recording, recording.policy_id, 1, ids, group_ids=(group_id,))
    assert group_state(recording, group_id) == "complete"
    commit(recording, other, 1, ids, group_ids=(group_id,))
    assert group_state(recording, group_id) == "consumed"


def test_a_lost_step_of_one_policy_does_not_count_for_the_other(store, recording):
    other = store.write(lambda conn: policies.register(conn, recording.run_id, "helper"))
    group_id, ids = finished_group(recording)
    commit(recording, recording.policy_id, 1, ids, group_ids=(group_id,))
    assert store.write(lambda conn: ledger.abandon_after(conn, recording.policy_id, 0)) == 1
    commit(recording, other, 1, ids, group_ids=(group_id,))
    assert group_state(recording, group_id) == "complete"
    commit(recording, recording.policy_id, 2, ids, group_ids=(group_id,))
    assert group_state(recording, group_id) == "consumed"


def test_tokens_keep_their_first_reason(store, recording):
    _, (rollout_id, _) = recording.group(2)
    call_id = recording.session(rollout_id).call(versions=(0,) * 6)
    spans = [(0, 2, "stale"), (2, 6, "tampered"), (0, 2, "late")]
    items = [ExcludedTokens(rollout_id, call_id, *span) for span in spans]
    store.write(lambda conn: ledger.exclude_tokens(conn, items))
    query = select(exclusions.c.start, exclusions.c.end, exclusions.c.reason).order_by(exclusions.c.start)
    assert store.read(lambda conn: [tuple(row) for row in conn.execute(query)]) == spans[:2]


def test_calls_of_a_step_are_counted_by_the_policy_that_was_called(store, recording):
    other = store.write(lambda conn: policies.register(conn, recording.run_id, "helper"))
    _, (first, second, third) = recording.group(3)
    session = recording.session(first)
    for policy_id, kind in ((None, "policy"), (other, "policy"), (None, "compaction"), (None, "side")):
        session.call(policy_id=policy_id, kind=kind)
    recording.session(second).call(policy_id=other)
    recording.session(third).call()
    commit(recording, recording.policy_id, 1, [first, second])
    commit(recording, recording.policy_id, 2, [third])

    def calls_of(policy_id, step):
        return store.read(lambda conn: ledger.calls_of_step(conn, policy_id, step))

    assert calls_of(recording.policy_id, 1) == {recording.policy_id: 2, other: 2}
    assert calls_of(recording.policy_id, 2) == {recording.policy_id: 1}
    assert calls_of(other, 1) == {}
    assert store.read(lambda conn: ledger.policy_calls(conn, first)) == session.calls[:3]
    assert store.read(lambda conn: ledger.steps(conn, recording.policy_id)) == [1, 2]
    assert store.read(lambda conn: ledger.steps(conn, other)) == []


@pytest.mark.parametrize(("limit", "number"), [(0, 0), (2, 2), (9, 3)])
def test_rollouts_of_a_step_come_in_order_up_to_a_limit(store, recording, limit, number):
    _, ids = recording.group(3)
    commit(recording, recording.policy_id, 1, list(reversed(ids)))
    rollout_ids = store.read(lambda conn: ledger.rollouts_of_step(conn, recording.policy_id, 1, limit))
    assert rollout_ids == sorted(ids)[:number]
