"""Counts over a run, asserted exactly, in a real file with rollouts that ended in every way."""

import pytest
from sqlalchemy import update

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import TraceStore, calls, policies, rollouts, runs, sessions, tables
from harnessgym.store.calls import CallIntent, Segment
from harnessgym.store.durations import GroupLength, RolloutDurations, lengths, rollout_durations
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import new_id
from harnessgym.task import Task


class Counted:
    """One run; groups of two rollouts each."""

    def __init__(self, store):
        self.store = store
        self.run = self.write(lambda conn: runs.add(conn, "demo", {}, "0", "training"))
        self.policy = self.write(lambda conn: policies.register(conn, self.run, "policy"))
        self.task = self.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
        self.ordinal = 0

    def write(self, work):
        return self.store.write(work)

    def ask(self, question, *more):
        return self.store.read(lambda conn: question(conn, self.run, *more))

    def group(self, purpose="train"):
        """A group and its two running rollouts."""
        spec = GroupSpec(
            self.run, self.task, self.policy, purpose, self.ordinal, 0, {}, ("h", "h"), "process", (0, 1)
        )
        self.ordinal += 1
        group = self.write(lambda conn: rollouts.submit(conn, spec))
        return group, [row.id for row in self.write(lambda conn: rollouts.claim(conn, self.run, "n", 60, 9))]

    def finish(self, rollout_id, reason=StopReason.FINISHED):
        outcome = RolloutOutcome(rollout_id, reason, "valid", {"reward": 1.0}, latencies={"evaluate": 2.5})
        self.write(lambda conn: rollouts.finish(conn, outcome))

    def fail(self, rollout_id, cause=Cause.ENGINE_ERROR):
        outcome = RolloutOutcome(rollout_id, StopReason.HARNESS_ERROR, "infrastructure_error", cause=cause)
        self.write(lambda conn: rollouts.fail(conn, outcome, 1))

    def sample(self, rollout_id, *made, kind="policy"):
        """Calls of a session: (created_at, prompt tokens, sampled tokens, seconds) of each."""

        def work(conn):
            session = sessions.add(conn, rollout_id, new_id(), sampling={}).id
            for ordinal, (t, prompt, sampled, seconds) in enumerate(made):
                segment = Segment(new_id(), session, "prompt", None, (1,))
                intent = CallIntent(
                    new_id(),
                    session,
                    rollout_id,
                    ordinal,
                    "chat",
                    kind,
                    "keep",
                    "r",
                    "c",
                    prompt,
                    "",
                    segment.id,
                    "",
                )
                calls.intend(conn, intent, segment, None)
                ended = {"created_at": t, "completion_len": sampled, "timings": {"total_s": seconds}}
                conn.execute(update(tables.calls).where(tables.calls.c.id == intent.id).values(ended))

        self.write(work)


@pytest.fixture
def world(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield Counted(store)


def test_an_empty_run_counts_nothing(world):
    assert world.ask(runs.tokens_sampled) == 0
    assert world.ask(runs.finished_rollouts) == 0
    assert world.ask(runs.failed_rollouts, "train") == {}
    assert world.ask(runs.slots, "train") == 0
    assert world.ask(runs.stop_reasons) == {}
    assert world.ask(lengths, 0) == []
    assert world.ask(rollout_durations) == []


def test_rollouts_are_counted_by_how_they_ended(world):
    _, (first, second) = world.group()
    _, (third, fourth) = world.group()
    _, (fifth, _) = world.group("before")
    world.finish(first)
    world.finish(second, StopReason.TURN_LIMIT)
    world.fail(third)
    world.finish(fifth)
    assert world.ask(runs.finished_rollouts) == 3
    assert world.ask(runs.finished_rollouts, "train") == 2
    assert world.ask(runs.failed_rollouts, "train") == {str(Cause.ENGINE_ERROR): 1}
    assert world.ask(runs.failed_rollouts, "before") == {}
    assert world.ask(runs.slots, "train") == 4
    assert world.ask(runs.slots, "before") == 2
    assert world.ask(runs.stop_reasons) == {"finished": 2, "turn_limit": 1, "harness_error": 1}
    world.fail(fourth, Cause.NODE_LOST)
    assert list(world.ask(runs.failed_rollouts, "train").items()) == sorted(
        {str(Cause.ENGINE_ERROR): 1, str(Cause.NODE_LOST): 1}.items()
    )


def test_a_failure_without_a_cause_is_unknown(world):
    _, (first, _) = world.group()
    world.fail(first)
    world.write(lambda conn: conn.execute(update(tables.rollouts).values(cause=None)))
    assert world.ask(runs.failed_rollouts, "train") == {"unknown": 1}


def test_tokens_of_a_run_are_those_of_all_its_calls(world):
    _, (first, second) = world.group()
    world.sample(first, (1.0, 10, 5, 0.5), (2.0, 20, None, 0.5))
    world.sample(second, (1.0, 10, 7, 0.5))
    assert world.ask(runs.tokens_sampled) == 12
    assert world.store.read(lambda conn: runs.tokens_sampled(conn, "another run")) == 0


def test_lengths_are_of_finished_rollouts_of_training_groups(world):
    group, (first, second) = world.group()
    other, (third, _) = world.group()
    world.group("before")
    world.sample(first, (1.0, 10, 5, 0.5), (2.0, 20, 6, 0.5))
    world.sample(second, (1.0, 10, 100, 0.5))
    world.finish(first)
    world.finish(third)
    assert world.ask(lengths, 0) == [
        GroupLength(group, 0, "open", 1, 11),
        GroupLength(other, 1, "open", 1, 0),
    ]
    assert world.ask(lengths, 1) == [GroupLength(other, 1, "open", 1, 0)]


def test_durations_are_what_lies_between_calls(world):
    _, (first, second) = world.group()
    world.sample(first, (10.0, 100, 20, 2.0), (15.0, 150, 30, 1.0), (15.5, 170, 10, 1.0))
    world.sample(second, (1.0, 10, 5, 0.5))
    world.finish(first)
    assert world.ask(rollout_durations) == [
        RolloutDurations(tokens=(20, 30, 10), read=(100, 30, 0), between_s=(3.0, 0.0), grading_s=2.5)
    ]


def test_side_calls_and_calls_without_tokens_have_no_duration(world):
    _, (first, _) = world.group()
    world.sample(first, (1.0, 100, 20, 2.0), kind="side")
    world.sample(first, (2.0, 100, None, 2.0))
    world.finish(first)
    assert world.ask(rollout_durations) == []
