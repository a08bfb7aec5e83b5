import time

import pytest

from harnessgym.config import validate
from harnessgym.errors import StoreError
from harnessgym.metrics.lines import append
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.run_config.run import FurtherPolicySection, RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import record_run
from harnessgym.store import TraceStore, leases, policies, rollouts, runs, workers
from harnessgym.store.ledger import StepRecord, TrainedRollout, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.progress import RunObserver, counters, read_metrics, trainer_use
from harnessgym.task import Task
from harnessgym.tokens import TokenArray
from tests.support.stored_rollouts import write_rollout


def test_a_step_logged_twice_around_a_crash_counts_once(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward": 0.1}\n{"step": 2, "reward": 0.2}\n{"step": 2, "reward": 0.3}\n'
    )
    assert [line["reward"] for line in read_metrics(RunFolder(tmp_path))] == [0.1, 0.3]


def test_a_line_cut_off_by_a_crash_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.1}\n{"step": 2, "rew')
    assert len(read_metrics(RunFolder(tmp_path))) == 1


def test_a_run_that_has_not_trained_has_none(tmp_path):
    assert read_metrics(RunFolder(tmp_path)) == []


def test_a_line_that_ran_into_the_next_after_a_full_disk_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward": 0.1}\n{"step": 2, "rew{"step": 2, "reward": 0.2}\n'
    )
    assert [line["step"] for line in read_metrics(RunFolder(tmp_path))] == [1]


def lines(*entries):
    return [{"step": step} | entry for step, entry in enumerate(entries, 1)]


def test_what_the_trainer_waits_and_works():
    use = trainer_use(
        lines({"wait_s": 3.0, "step_s": 1.0, "time": 10.0}, {"wait_s": 1.0, "step_s": 3.0, "time": 16.0})
    )
    assert (use.idle, use.wait_s, use.step_s, use.interval_s) == (0.5, 2.0, 2.0, 6.0)
    alone = trainer_use(lines({"wait_s": 3.0, "step_s": 1.0, "time": 10.0}))
    assert alone.interval_s == 4.0
    assert (
        trainer_use(lines({"reward": 1.0})) is None
    )  # logged again by a trainer that had died before it could
    assert trainer_use([]) is None


def test_what_was_dropped_or_put_back_is_summed_whatever_it_is_called():
    told = lines({"dropped_groups": 2, "requeued": 1, "reward": 1.0}, {"dropped_groups": 3, "replayed": 2})
    assert counters(told) == {"dropped_groups": 5, "requeued": 1, "replayed": 2}


def test_what_the_trainer_counts_is_summed_line_by_line(lived):
    """Also where a step is written again, and where the file is another."""
    lived.begin()
    path = lived.folder.metrics_path
    append(path, {"step": 1, "dropped_groups": 2})
    assert lived.observer.look().counters == {"dropped_groups": 2}
    append(path, {"step": 2, "dropped_groups": 1, "requeued": 4})
    assert lived.observer.look().counters == {"dropped_groups": 3, "requeued": 4}
    assert lived.observer.look().counters == {"dropped_groups": 3, "requeued": 4}
    append(path, {"step": 2, "dropped_groups": 5})  # by a trainer that went on from step 1
    append(path, {"step": 3, "dropped_groups": 1})
    assert lived.observer.look().counters == {"dropped_groups": 8}
    path.write_text("")
    append(path, {"step": 1, "dropped_groups": 9})
    assert lived.observer.look().counters == {"dropped_groups": 9}


def test_a_run_of_several_policies_is_as_far_as_the_last_of_them(tmp_path):
    lived = Lived(tmp_path)
    config = lived.folder.config()
    helper = FurtherPolicySection(name="helper", path=config.policy.path)
    several = config.model_copy(update={"policies": (helper,)}).model_dump(mode="json")
    write_json(lived.folder.config_path, several)
    observer = RunObserver(lived.folder, lived.store)
    lived.begin()
    helper_id = lived.write(lambda conn: policies.register(conn, lived.run, "helper"))
    row = PolicyVersion(3, None, "full", "", 3, "", 0, committed=True, orphaned=False)
    lived.write(lambda conn: policies.publish(conn, helper_id, row))
    (lived.folder.policies / "helper").mkdir(parents=True)
    for folder, steps in ((lived.folder, 2), (RunFolder(tmp_path, "helper"), 3)):
        for step in range(1, steps + 1):
            append(folder.metrics_path, {"step": step, "wait_s": 1.0, "step_s": 3.0})
    seen = observer.look()
    assert (seen.steps, seen.done) == (2, 2)
    assert [(each.name, each.version, each.steps) for each in seen.policies.values()] == [
        ("policy", -1, 2),
        ("helper", 3, 3),
    ]
    assert seen.policies[helper_id].trainer.idle == 0.25
    lived.store.close()


class Lived:
    """A run's folder and store, in which things happen as they do in a run."""

    def __init__(self, root):
        raw = {
            "name": "lived",
            "policy": {"path": str(root)},
            "tasks": {"set": "lookup"},
            "trainer": {"steps": 4},
        }
        raw |= {"harnesses": [{"name": "pi", "settings": {"argv": ["pi"]}}], "node": {"max_running": 2}}
        self.folder = RunFolder(root)
        write_json(self.folder.config_path, validate(RunConfig, raw, "the test").model_dump(mode="json"))
        self.store = TraceStore.create(self.folder.store_url())
        self.observer = RunObserver(self.folder, self.store)
        self.write = self.store.write

    def begin(self, status="training"):
        self.run = self.write(lambda conn: runs.add(conn, "lived", {}, "0", status))
        self.policy = self.write(lambda conn: policies.register(conn, self.run, "policy"))
        self.task = self.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
        self.write(
            lambda conn: workers.upsert(conn, WorkerRow("engine-0", self.run, "embedded", "", 3, "ready"))
        )

    def submit(self, purpose="train", ordinal=0, size=2, run=None):
        spec = GroupSpec(
            run or self.run,
            self.task,
            self.policy,
            purpose,
            ordinal,
            0,
            {},
            ("pi",) * size,
            "process",
            (0,) * size,
        )
        self.write(lambda conn: rollouts.submit(conn, spec))

    def claim(self, run=None):
        return [
            row.id for row in self.write(lambda conn: rollouts.claim(conn, run or self.run, "node", 60.0, 9))
        ]

    def call(self, rollout, turns=1):
        self.write(lambda conn: write_rollout(conn, rollout, turns, TokenArray([1, 2, 3, 4]), [-0.5, -0.5]))

    def finish(self, rollout, **latencies):
        outcome = RolloutOutcome(rollout, StopReason.FINISHED, "valid", {"reward": 1.0}, latencies=latencies)
        self.write(lambda conn: rollouts.finish(conn, outcome))

    def train(self, step, *members):
        version = PolicyVersion(step, None, "full", "", step, "", 1000 * step, committed=True, orphaned=False)
        trained = tuple(TrainedRollout(rollout, 10, lag) for rollout, lag in members)
        self.write(lambda conn: commit_step(conn, self.policy, StepRecord(version, (), trained, ())))
        append(
            self.folder.metrics_path,
            {"step": step, "reward": 0.5, "wait_s": 1.0, "step_s": 3.0, "time": 100.0 + 5 * step},
        )


@pytest.fixture
def lived(tmp_path):
    run = Lived(tmp_path)
    yield run
    run.store.close()


def test_a_folder_whose_run_has_not_begun_says_so(lived):
    with pytest.raises(StoreError, match="has no run in its store"):
        lived.observer.look()


def test_a_run_that_has_just_begun(lived):
    lived.begin()
    seen = lived.observer.look()
    assert (seen.name, seen.status, seen.done, seen.total) == ("lived", "training", 0, 4)
    assert (seen.left_s, seen.trainer, seen.metrics, seen.rewards) == (None, None, {}, ())
    assert (seen.tokens_per_s, seen.rollouts_per_s, seen.versions, dict(seen.staleness)) == (0.0, 0.0, (), {})
    assert [(row.id, row.version, use.busy) for row, use in seen.engines] == [("engine-0", 3, 0.0)]


def test_an_engine_of_which_nothing_is_heard_is_silent_until_the_run_is_over(lived):
    lived.begin()
    lived.write(lambda conn: workers.upsert(conn, WorkerRow("vllm-a-1", lived.run, "vllm", "", 3, "ready")))
    write_json(lived.folder.silent_path, {"engine-0": time.time() - 20, "vllm-a-1": time.time() - 30})
    seen = lived.observer.look()
    assert {row.id: row.state for row, _ in seen.engines} == {"engine-0": "silent", "vllm-a-1": "ready"}, (
        "its agent is silent"
    )
    assert {name: round(seconds) for name, seconds in seen.silent.items()} == {"engine-0": 20, "vllm-a-1": 30}
    lived.write(lambda conn: workers.retire(conn, lived.run))
    lived.write(lambda conn: runs.set_status(conn, lived.run, "done"))
    seen = lived.observer.look()
    assert {row.id: row.state for row, _ in seen.engines} == {"engine-0": "ended", "vllm-a-1": "ready"}
    assert seen.silent == {}


def test_rollouts_are_followed_from_their_calls_to_their_end(lived):
    lived.begin()
    lived.submit()
    first, second = lived.claim()
    lived.submit(ordinal=1)
    lived.call(first, 3)
    seen = lived.observer.look()
    assert (seen.running, seen.pending, seen.groups) == (2, 2, {"open": 2, "complete": 0, "dropped": 0})
    assert seen.tokens_per_s > 0
    assert seen.rollouts_per_s == 0
    lived.finish(first, **{"run": 2.0, "wait.run": 1.0})
    failure = RolloutOutcome(
        second, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    lived.write(lambda conn: rollouts.fail(conn, failure, 1))
    seen = lived.observer.look()
    assert (seen.running, seen.failed, seen.failures) == (0, 1, {"sandbox_died": 1})
    assert seen.rollouts_per_s > 0
    places, use = seen.stages["run"]
    assert (places, use.mean_s) == (2, 2.0)
    assert 0 < use.running <= places


def test_a_rollout_that_began_and_ended_between_two_looks_counts(lived):
    lived.begin()
    lived.observer.look()
    lived.submit(size=1)
    (only,) = lived.claim()
    lived.call(only)
    lived.finish(only)
    assert lived.observer.look().rollouts_per_s > 0


def test_rollouts_of_another_run_in_the_same_database_do_not_count(lived):
    lived.begin()
    other, lived.run = lived.run, None
    lived.run = lived.write(lambda conn: runs.add(conn, "lived", {}, "0", "training"))
    with pytest.raises(StoreError, match="holds 2 runs"):
        lived.observer.look()
    record_run(lived.folder, lived.store.read(lambda conn: runs.get(conn, lived.run)))
    lived.submit(run=other)
    for rollout in lived.claim(run=other):
        lived.call(rollout)
        lived.finish(rollout)
    for _ in range(2):
        seen = lived.observer.look()
        assert (seen.tokens_per_s, seen.rollouts_per_s, seen.running) == (0.0, 0.0, 0)


def test_steps_staleness_and_what_was_published(lived):
    lived.begin()
    lived.submit(size=4)
    first, second, third, fourth = lived.claim()
    lived.train(1, (first, 0), (second, 0))
    assert lived.observer.look().staleness == {0: 20}
    lived.train(2, (third, 1), (fourth, 2))
    seen = lived.observer.look()
    assert (dict(seen.staleness), dict(seen.staleness_of_step)) == ({0: 20, 1: 10, 2: 10}, {1: 10, 2: 10})
    assert (seen.steps, seen.done, seen.rewards) == (2, 2, (0.5, 0.5))
    assert seen.left_s == 10.0  # two steps at five seconds each
    assert [(item.version, item.bytes) for item in seen.versions] == [(1, 1000), (2, 2000)]
    assert seen.trainer.idle == 0.25
    assert dict(lived.observer.look().staleness) == {
        0: 20,
        1: 10,
        2: 10,
    }  # the same again when nothing happened


def test_an_evaluation_is_measured_in_groups_and_its_own_pace(lived):
    lived.begin("evaluating_before")
    for ordinal in range(3):
        lived.submit("before_sampled", ordinal, 1)
    lived.submit("before_greedy", 0, 1)
    seen = lived.observer.look()
    assert (seen.done, seen.total, seen.left_s) == (0, 4, None)
    for rollout in lived.claim()[:2]:
        lived.call(rollout)
        lived.finish(rollout)
    seen = lived.observer.look()
    assert (seen.done, seen.total) == (2, 4)
    assert seen.left_s > 0


def test_a_run_that_has_ended_shows_its_last_minute(lived):
    lived.begin()
    lived.submit(size=1)
    (only,) = lived.claim()
    lived.call(only)
    lived.finish(only, run=1.0)
    lived.write(lambda conn: runs.set_status(conn, lived.run, "done"))
    seen = RunObserver(lived.folder, lived.store).look()
    assert seen.status == "done"
    assert seen.rollouts_per_s > 0
    assert seen.processors == {}


def test_reading_twice_counts_once(lived):
    """A store may run a read again: what a look knows must not grow by that."""
    lived.begin()
    lived.submit(size=1)
    (only,) = lived.claim()
    lived.call(only)
    lived.train(1, (only, 0))
    lived.store.read(lived.observer._read)
    assert dict(lived.observer.look().staleness) == {0: 10}
    lived.store.read(lived.observer._read)
    assert dict(lived.observer.look().staleness) == {0: 10}


def test_places_are_those_of_all_nodes_that_take_rollouts(lived):
    lived.begin()
    seen = lived.observer.look()
    assert (seen.nodes, seen.recorded, seen.stages["run"][0]) == (0, False, 2)
    for name in ("node-0", "node-1", "node-2"):
        lived.write(lambda conn, name=name: leases.announce_node(conn, lived.run, name, 60.0))
    seen = lived.observer.look()
    assert (seen.nodes, seen.stages["run"][0], seen.stages["evaluate"][0]) == (
        3,
        6,
        3 * lived.folder.config().node.evaluate_at_once,
    )
    lived.write(lambda conn: leases.withdraw_node(conn, lived.run, "node-2"))
    lived.folder.processes_path.write_text("{}")
    seen = lived.observer.look()
    assert (seen.nodes, seen.recorded, seen.stages["run"][0]) == (2, True, 4)


def test_restarts_are_known_to_the_supervisor_alone(lived):
    lived.begin()
    assert lived.observer.look().restarts is None
    assert RunObserver(lived.folder, lived.store, lambda: 3).look().restarts == 3
