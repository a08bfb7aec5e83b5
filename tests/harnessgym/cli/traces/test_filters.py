"""Which rollouts a command is about: the named ones, or those that match filters, in a real database."""

import pytest

from harnessgym.cli.traces.filters import of_known_run, selected
from harnessgym.errors import StoreError
from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.listing import RolloutFilter
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Task


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store with two runs: three training rollouts with rewards 0, 1 and none yet, and one of evaluation."""
    path = tmp_path_factory.mktemp("filters") / "traces.db"
    with TraceStore.create(f"sqlite:///{path}") as store:

        def begin(conn, run, key, harnesses, purpose="train"):
            policy = policies.register(conn, run, "policy")
            task = runs.add_task(conn, "set", Task(key, "Do it."))
            seeds = tuple(range(len(harnesses)))
            rollouts.submit(
                conn, GroupSpec(run, task, policy, purpose, 0, 0, {}, harnesses, "process", seeds)
            )
            return [row.id for row in rollouts.claim(conn, run, "node", 60.0, len(harnesses))]

        def fill(conn):
            first = runs.add(conn, "first", {}, "test", "training")
            second = runs.add(conn, "second", {}, "test", "training")
            training = begin(conn, first, "a", ("one", "one", "two"))
            for rollout_id, reward in zip(training[:2], (0.0, 1.0), strict=True):
                rollouts.finish(
                    conn, RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": reward})
                )
            evaluation = begin(conn, second, "b", ("one",), "before_greedy")
            return first, second, training, evaluation

        yield store, *store.write(fill)


@pytest.fixture
def ids(recorded):
    """The ids that filters select."""
    return lambda **conditions: selected(recorded[0], None, RolloutFilter(**conditions))


def test_all_rollouts_oldest_first(recorded):
    store, _, _, training, evaluation = recorded
    assert selected(store, None) == selected(store, []) == [*training, *evaluation]


def test_named_rollouts_come_in_the_order_of_their_names_and_once(recorded):
    store, _, _, training, _ = recorded
    assert selected(store, [training[1], training[0], training[1]]) == [training[1], training[0]]


def test_a_beginning_that_fits_one_rollout_names_it(recorded):
    store, _, _, training, evaluation = recorded
    others = [*training[1:], *evaluation]
    lengths = range(1, len(training[0]) + 1)
    beginning = next(
        training[0][:n] for n in lengths if not any(each.startswith(training[0][:n]) for each in others)
    )
    assert selected(store, [beginning]) == [training[0]]
    with pytest.raises(StoreError, match="No rollout begins with 'zzz'"):
        selected(store, ["zzz"])


def test_latest_is_the_newest(recorded):
    store, _, _, _, evaluation = recorded
    assert selected(store, ["latest"]) == evaluation


def test_names_come_before_filters(recorded):
    store, _, _, training, _ = recorded
    assert selected(store, training[:1], RolloutFilter(purpose="before_greedy")) == training[:1]


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({"purpose": "train"}, (0, 1, 2)),
        ({"purpose": "before_greedy"}, (3,)),
        ({"task": "b"}, (3,)),
        ({"harness": "one"}, (0, 1, 3)),
        ({"harness": "one", "task": "a"}, (0, 1)),
        ({"status": "finished"}, (0, 1)),
        ({"status": "running"}, (2, 3)),
        ({"stop_reason": "finished"}, (0, 1)),
        ({"verdict": "valid"}, (0, 1)),
        ({"verdict": "tampered"}, ()),
        ({"min_reward": 0.5}, (1,)),
        ({"max_reward": 0.5}, (0,)),
        ({"min_reward": 0.0, "max_reward": 1.0}, (0, 1)),
        ({"min_reward": 1.5}, ()),
    ],
)
def test_every_condition_that_is_set_must_hold(recorded, ids, conditions, numbers):
    everything = [*recorded[3], *recorded[4]]
    assert ids(**conditions) == [everything[number] for number in numbers]


def test_a_run_is_named_by_its_id_a_beginning_or_as_the_latest(recorded, ids):
    _, first, second, training, evaluation = recorded
    assert ids(run_id=first) == training
    assert ids(run_id=second) == ids(run_id="latest") == evaluation


def test_an_unknown_run_is_named_with_those_that_there_are(recorded, ids):
    with pytest.raises(StoreError, match="The database has no run that begins with 'zzz'") as error:
        ids(run_id="zzz")
    assert f"It has: {recorded[1]}, {recorded[2]}." in str(error.value)


def test_a_beginning_of_both_runs_is_refused(ids):
    with pytest.raises(StoreError, match="More than one run of the database beginning with ''"):
        ids(run_id="")


def test_a_filter_without_a_run_stays_as_it_is(recorded):
    wanted = RolloutFilter(task="a")
    assert of_known_run(recorded[0], wanted) is wanted
