"""Batches that the trainers of several policies take together: the same groups in the same order, whoever
is killed when.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, backlog, ledger, policies, rollouts, runs
from harnessgym.store.ledger import StepRecord, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import groups, policy_versions, trained
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.task import Task
from harnessgym.traces.verification.verify import verify

NAMES = ("first", "second", "third")
BATCH = 2


@pytest.fixture
def store(url):
    with TraceStore.open(url) as store:
        yield store


def version_of(version, parent, step):
    return PolicyVersion(version, parent, "full", "", step, "", 0, committed=True, orphaned=False)


@dataclass
class Trainer:
    """What a trainer does with the store, without a model."""

    store: TraceStore
    run: str
    policy: str
    lineage: list[int] = field(default_factory=lambda: [0])
    """Its surviving versions; as many steps as there are behind the first."""
    held: list[str] = field(default_factory=list)
    """What it has gathered and not trained."""
    seen: dict[int, list[str]] = field(default_factory=dict)
    """Every batch that it ever had, by step."""

    def gather(self, ahead):
        """Go on with the batch of the next step: take what is settled, else settle up to `ahead` free
        groups.
        """
        step = len(self.lineage)
        known = self.store.read(lambda conn: backlog.batch(conn, self.run, step))
        free = [
            item.id for item in self.store.read(lambda conn: backlog.free(conn, self.run)) if item.complete
        ]
        chosen = free[: min(ahead, BATCH - len(known))]
        if chosen:
            assert self.store.write(
                lambda conn: backlog.settle_batch(conn, self.run, step, len(known), chosen)
            )
            known = self.store.read(lambda conn: backlog.batch(conn, self.run, step))
        if len(known) == BATCH:
            self.held = known
            assert self.seen.setdefault(step, known) == known

    def commit(self):
        if self.held:
            number = self.store.read(lambda conn: policies.next_version(conn, self.policy))
            members = self.store.read(
                lambda conn: (
                    conn.execute(select(rollouts_table.c.id).where(rollouts_table.c.group_id.in_(self.held)))
                    .scalars()
                    .all()
                )
            )
            version = version_of(number, self.lineage[-1], len(self.lineage))
            record = StepRecord(
                version, tuple(self.held), tuple(TrainedRollout(member, 0, 0) for member in members), ()
            )
            for _ in range(2):  # a trainer that dies around it does it again
                self.store.write(lambda conn: ledger.commit_step(conn, self.policy, record))
            self.lineage.append(number)
            self.held = []

    def crash(self, back):
        """Lose what is held, and if the newest checkpoint is gone too, the last step."""
        self.held = []
        if back and len(self.lineage) > 1:
            self.lineage.pop()
            self.store.write(lambda conn: ledger.abandon_after(conn, self.policy, self.lineage[-1]))


def complete(store, run, policy, ordinal):
    task = store.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
    spec = GroupSpec(run, task, policy, "train", ordinal, 0, {}, ("h", "h"), "process", (0, 1))
    group = store.write(lambda conn: rollouts.submit(conn, spec))
    for row in store.write(lambda conn: rollouts.claim(conn, run, "node", 60.0, 2)):
        outcome = rollouts.RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": float(row.slot)})
        store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))
    return group


def trained_by(store, group):
    """Policies that have trained a group in a surviving step, each rollout once."""
    same = (policy_versions.c.policy_id == trained.c.policy_id) & (
        policy_versions.c.version == trained.c.version
    )
    query = (
        select(trained.c.rollout_id, trained.c.policy_id)
        .join(rollouts_table, rollouts_table.c.id == trained.c.rollout_id)
        .join(policy_versions, same)
        .where(rollouts_table.c.group_id == group, ~policy_versions.c.orphaned)
    )
    found = [tuple(row) for row in store.read(lambda conn: conn.execute(query).all())]
    assert len(found) == len(set(found)), "trained twice"
    return {policy for _, policy in found}


def begin(store, count):
    run = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
    ids = [store.write(lambda conn, name=name: policies.register(conn, run, name)) for name in NAMES[:count]]
    for policy in ids:
        store.write(lambda conn, policy=policy: policies.publish(conn, policy, version_of(0, None, 0)))
    return run, [Trainer(store, run, policy) for policy in ids]


ACTIONS = st.one_of(
    st.tuples(st.just("complete"), st.just(0), st.just(0)),
    st.tuples(st.just("gather"), st.integers(0, 2), st.integers(1, BATCH)),
    st.tuples(st.just("gather"), st.integers(0, 2), st.integers(1, BATCH)),
    st.tuples(st.just("commit"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 2), st.integers(0, 1)),
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 3), actions=st.lists(ACTIONS, min_size=10, max_size=30))
def test_whatever_happens_all_policies_take_the_same_groups_in_the_same_order(store, count, actions):
    run, trainers = begin(store, count)
    made = [complete(store, run, trainers[0].policy, ordinal) for ordinal in range(4)]
    for what, who, how in actions:
        trainer = trainers[who % count]
        if what == "complete":
            made.append(complete(store, run, trainers[0].policy, len(made)))
        elif what == "gather":
            trainer.gather(how)
        elif what == "commit":
            trainer.commit()
        else:
            trainer.crash(how)
    for trainer in trainers:
        assert all(
            trainer.seen[step] == batch
            for other in trainers
            for step, batch in other.seen.items()
            if step in trainer.seen
        )
    last = max((step for trainer in trainers for step in trainer.seen), default=0)
    taken = [
        group
        for step in range(1, last + 3)  # the batch behind the last full one may hold a part
        for group in store.read(lambda conn, step=step: backlog.batch(conn, run, step))
    ]
    assert len(taken) == len(set(taken))
    states = dict(store.read(lambda conn: conn.execute(select(groups.c.id, groups.c.state)).all()))
    everybody = {trainer.policy for trainer in trainers}
    assert all((states[group] == "consumed") == (trained_by(store, group) == everybody) for group in made)
    assert not verify(store, run).findings


def test_only_the_faster_of_two_trainers_settles_a_batch(store):
    run, (one, other) = begin(store, 2)
    groups_ = [complete(store, run, one.policy, ordinal) for ordinal in range(3)]

    def settle(known, chosen):
        return store.write(lambda conn: backlog.settle_batch(conn, run, 1, known, chosen))

    assert settle(0, groups_[:2])
    assert not settle(0, groups_[1:])
    assert not settle(2, groups_[1:])
    assert settle(2, groups_[2:])
    assert store.read(lambda conn: backlog.batch(conn, run, 1)) == groups_
    assert not store.write(lambda conn: backlog.give_up(conn, groups_[0], "too_stale", 0))
    assert other.policy != one.policy


def test_a_run_of_one_policy_consumes_at_once(store):
    run, (only,) = begin(store, 1)
    made = [complete(store, run, only.policy, ordinal) for ordinal in range(2)]
    only.held = made
    only.commit()
    assert store.read(lambda conn: rollouts.group_states(conn, run, "train")) == {"consumed": 2}


REFILLS = 3
"""Groups without a signal that a batch may give up."""


@dataclass(frozen=True)
class Look:
    """What a trainer saw when it looked for groups, and so wants to settle."""

    step: int
    known: int
    take: list[str]
    barren: list[str]

    @classmethod
    def at(cls, store, run, barren, step=1):
        """As `trainers.batch_collector` does it: the oldest groups, those without a signal given up
        while that is allowed.
        """
        known = len(store.read(lambda conn: backlog.batch(conn, run, step)))
        spent = store.read(lambda conn: backlog.given_up(conn, run, step - 1)).get("no_signal", 0)
        free = [item.id for item in store.read(lambda conn: backlog.free(conn, run)) if item.complete]
        found = free[: BATCH - known]
        left = [group for group in found if group in barren][: max(0, REFILLS - spent)]
        return cls(step, known, [group for group in found if group not in left], left)

    def settle(self, store, run):
        leave = {"no_signal": self.barren}
        return store.write(
            lambda conn: backlog.settle_batch(conn, run, self.step, self.known, self.take, leave, REFILLS)
        )


def outcome(store, run):
    """How many groups the first batch gave up, and the ordinals of those in it."""
    query = (
        select(groups.c.ordinal).where(groups.c.run_id == run, groups.c.batch == 1).order_by(groups.c.place)
    )
    ordinals = store.read(lambda conn: conn.execute(query).scalars().all())
    return store.read(lambda conn: backlog.given_up(conn, run, 0)).get("no_signal", 0), ordinals


def prepared(store, signals):
    """A run with complete groups; those that have no signal."""
    run, trainers = begin(store, 2)
    made = [complete(store, run, trainers[0].policy, ordinal) for ordinal in range(len(signals))]
    return run, {group for group, signal in zip(made, signals, strict=True) if not signal}


def lone(store, signals):
    """What one trainer alone makes of the same groups."""
    run, barren = prepared(store, signals)
    while (look := Look.at(store, run, barren)).take or look.barren:
        assert look.settle(store, run)
    return outcome(store, run)


SIGNALS = st.lists(st.booleans(), min_size=1, max_size=7)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(signals=SIGNALS, order=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=14))
def test_trainers_that_act_on_what_they_saw_earlier_give_up_what_one_alone_would(store, signals, order):
    """Each looks, and settles later; in between the other may have settled. At the end both go on until
    nothing is left.
    """
    expected = lone(store, signals)
    run, barren = prepared(store, signals)
    seen = [Look.at(store, run, barren), Look.at(store, run, barren)]
    for who, looks in [*order, *[(turn % 2, how) for turn in range(16) for how in (True, False)]]:
        if looks:
            seen[who] = Look.at(store, run, barren)
        else:
            seen[who].settle(store, run)
        assert outcome(store, run)[0] <= expected[0]
    assert outcome(store, run) == expected


@pytest.mark.parametrize("signals", [(0, 0, 0, 0, 0, 0), (0, 1, 0, 0, 1), (1, 0, 0, 1, 1)])
def test_trainers_that_race_give_up_what_one_alone_would(store, url, signals):
    """Two threads on connections of their own, which look together and settle at the same moment, until a
    batch is full.
    """
    expected = lone(store, signals)
    run, barren = prepared(store, signals)
    together, faster = threading.Barrier(2, timeout=60.0), list[bool]()

    def trainer(own):
        for _ in signals:
            look = Look.at(own, run, barren)
            together.wait()
            if look.take or look.barren:
                faster.append(look.settle(own, run))
            together.wait()

    with TraceStore.open(url) as one, TraceStore.open(url) as other, ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(trainer, own) for own in (one, other)]:
            done.result()
    assert outcome(store, run) == expected
    assert faster.count(True) == faster.count(False) > 0


def test_what_others_gave_up_since_a_look_counts_against_its_refills(store):
    """Groups that end between two looks: the looks have none in common, and both may not have their way."""
    run, barren = prepared(store, (0, 0, 0, 0))
    slow = sorted(barren)[:2]
    for group in slow:
        store.write(lambda conn, group=group: rollouts.set_group_state(conn, group, "open"))
    early = Look.at(store, run, barren)
    for group in slow:
        store.write(lambda conn, group=group: rollouts.set_group_state(conn, group, "complete"))
    late = Look.at(store, run, barren)
    assert not {*early.barren} & {*late.barren}
    assert late.settle(store, run)
    assert not early.settle(store, run)
    assert outcome(store, run) == (2, [])


def test_what_runs_and_is_too_old_is_stopped_with_the_batch_or_not_at_all(store):
    run, (one, _) = begin(store, 2)
    taken = complete(store, run, one.policy, 0)
    task = store.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
    running = GroupSpec(run, task, one.policy, "train", 1, 0, {}, ("h", "h"), "process", (0, 1))
    opened = store.write(lambda conn: rollouts.submit(conn, running))

    def settle(known, leave):
        return store.write(lambda conn: backlog.settle_batch(conn, run, 1, known, [taken], leave))

    assert not settle(1, {"requeued": [opened]})
    assert not settle(0, {"no_signal": [opened]})
    assert store.read(lambda conn: rollouts.group_states(conn, run, "train")) == {"complete": 1, "open": 1}
    assert settle(0, {"requeued": [opened]})
    assert store.read(lambda conn: backlog.given_up(conn, run, 0)) == {"requeued": 1}
    assert store.read(lambda conn: rollouts.unfinished(conn, run, "train")) == 0
