"""Longer runs: what changes in folder and database, and what the next summary is made of."""

import contextlib
from functools import partial

import pytest

from harnessgym.outcome.failure import StopReason
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.supervisor import prepare
from harnessgym.supervisor.local import LocalProcesses
from harnessgym.supervisor.summary import summarise
from harnessgym.supervisor.supervisor import Supervisor
from harnessgym.task import Task
from harnessgym.tokens import TokenArray
from harnessgym.traces.token_accounting import account, exclude_rest
from tests.harnessgym.supervisor.starts import OUTSIDE, config, publish, refused, start, stored
from tests.support.stored_rollouts import write_rollout


def test_more_steps_are_refused_without_extend_and_then_add_steps_alone(tmp_path):
    first = start(tmp_path / "run", config())
    folder = RunFolder(tmp_path / "run")
    publish(folder, 6)
    refused(folder.root, config(steps=8), "holds a run of 6 steps", "trainer.steps is 8 now", "Add --extend")
    said = refused(
        folder.root,
        config(steps=8, seed=1),
        "trainer.steps was 6 and is 8",
        "seed was 0 and is 1",
        extend=True,
    )
    assert "--extend lets trainer.steps grow, and changes nothing else" in said
    refused(folder.root, config(steps=4), "trainer.steps was 6 and is 4", "nothing else", extend=True)
    assert folder.config().trainer.steps == 6
    extended = start(folder.root, config(steps=8), extend=True)
    assert str(extended) == f"Extends run {first.run_id} from 6 to 8 steps; it goes on at step 6."
    assert folder.config().trainer.steps == 8
    assert stored(folder.store_url())[0].config["trainer"]["steps"] == 8
    for again in (False, True):  # an interrupted extension goes on, with the flag and without it
        assert (
            str(start(folder.root, config(steps=8), extend=again))
            == f"Continues run {first.run_id} at step 6 of 8."
        )
    refused(folder.root, config(), "trainer.steps was 8 and is 6")


def test_there_must_be_a_run_to_extend(tmp_path):
    refused(tmp_path / "run", config(), "holds no run to lengthen", "Leave --extend out", extend=True)
    assert not (tmp_path / "run").exists()
    prepare(config(), tmp_path / "run")
    refused(tmp_path / "run", config(), "holds no run to lengthen", extend=True)


def test_a_finished_run_says_so_and_how_to_lengthen_it(tmp_path):
    first = start(tmp_path / "run", config())
    with TraceStore.open(RunFolder(tmp_path / "run").store_url()) as store:
        store.write(lambda conn: runs.set_status(conn, first.run_id, "done"))
    assert "has finished its 6 steps" in str(start(tmp_path / "run", config()))
    assert "--extend" in str(start(tmp_path / "run", config()))


@pytest.mark.parametrize("kind", OUTSIDE)
def test_an_extension_that_was_killed_between_database_and_folder_is_completed(tmp_path, make_url, kind):
    url = make_url(kind)
    first = start(tmp_path / "run", config(url))
    folder = RunFolder(tmp_path / "run")
    before = folder.config_path.read_text()
    start(folder.root, config(url, 8), extend=True)
    folder.config_path.write_text(before)
    refused(folder.root, config(url), "trainer.steps was 8 and is 6")
    assert (
        str(start(folder.root, config(url, 8), extend=True))
        == f"Continues run {first.run_id} at step 0 of 8."
    )
    assert folder.config().trainer.steps == 8


def test_without_a_checkpoint_an_extension_says_that_the_optimizer_starts_anew(tmp_path):
    start(tmp_path / "run", config())
    folder, told = RunFolder(tmp_path / "run"), []
    publish(folder, 6, checkpoint=False)
    start(folder.root, config(steps=8), extend=True, notify=told.append)
    assert [line for line in told if str(folder.checkpoints) in line and "fresh optimizer" in line]
    told.clear()
    publish(folder, 7)
    start(folder.root, config(steps=8), notify=told.append)
    assert told == []


class Recorded:
    """A run of one step whose rollouts are written by hand."""

    def __init__(self, root, url):
        self.run_id = start(root, config(url, 1)).run_id
        self.folder = RunFolder(root)
        publish(self.folder, 0)
        publish(self.folder, 1)
        self.store = TraceStore.open(self.folder.store_url())
        self.policy = self.read(policies.of_run)["policy"]
        names = ("one", "two")
        self.tasks = [
            self.store.write(lambda conn, name=name: runs.add_task(conn, "set", Task(name, ".")))
            for name in names
        ]

    def read(self, query, *arguments):
        return self.store.read(lambda conn: query(conn, self.run_id, *arguments))

    def group(self, purpose, ordinal, rewards, state="finished"):
        """A group of rollouts of two sampled tokens each, which have ended, run or wait."""
        slots = len(rewards)
        spec = GroupSpec(
            self.run_id,
            self.tasks[ordinal],
            self.policy,
            purpose,
            ordinal,
            1,
            {},
            ("pi",) * slots,
            "process",
            (0,) * slots,
        )
        self.store.write(partial(rollouts.submit, spec=spec))
        if state == "pending":
            return
        rows = self.store.write(lambda conn: rollouts.claim(conn, self.run_id, "node@1", 60.0, slots))
        for row, reward in zip(rows, rewards, strict=True):
            self.store.write(
                lambda conn, row=row: write_rollout(conn, row.id, 1, TokenArray([1, 2, 3]), [-0.5, -0.5])
            )
            if state == "finished":
                outcome = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward})
                self.store.write(partial(rollouts.finish, outcome=outcome))

    def evaluation(self, when, sampled, greedy):
        for ordinal, rewards in enumerate(zip(sampled, greedy, strict=True)):
            self.group(f"{when}_sampled", ordinal, rewards[:1])
            self.group(f"{when}_greedy", ordinal, rewards[1:])

    def set_status(self, status):
        self.store.write(lambda conn: runs.set_status(conn, self.run_id, status))

    def status(self):
        return self.read(runs.get).status

    def summary(self):
        return summarise(self.store, self.folder, {}, "process")

    def extend(self, steps):
        return start(self.folder.root, config(self.folder.config().store.url, steps), extend=True)


@pytest.fixture
def recorded(tmp_path, make_url):
    made = []

    def make(kind):
        made.append(Recorded(tmp_path / "run", make_url(kind)))
        return made[-1]

    yield make
    for run in made:
        run.store.close()


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_the_evaluation_of_a_shorter_run_is_kept_and_is_not_that_of_the_longer_one(recorded, kind):
    run = recorded(kind)
    run.evaluation("before", (0.0, 1.0), (0.0, 0.0))
    run.evaluation("after", (0.0, 0.0), (1.0, 0.0))
    run.set_status("done")
    short = run.summary()
    assert (short["success_before"], short["success_after"], short["gain"], short["greedy_after"]) == (
        0.5,
        0.0,
        -0.5,
        0.5,
    )
    for name in ("summary.json", "curve.png"):
        (run.folder.root / name).write_text(name)
    assert run.extend(3).kind == "extends"
    (row,) = stored(run.folder.store_url())
    assert (row.status, row.ended_at) == ("training", None)
    assert run.read(rollouts.rewards_of, "after_sampled@1") == [0.0, 0.0]
    assert run.read(rollouts.rewards_of, "after_greedy@1") == [1.0, 0.0]
    kept = {path.name: path.read_text() for path in run.folder.root.glob("*-1-steps.*")}
    assert kept == {"summary-1-steps.json": "summary.json", "curve-1-steps.png": "curve.png"}
    assert not run.folder.summary_path.exists()
    between = run.summary()
    assert (
        between["success_before"],
        between["success_after"],
        between["gain"],
        between["greedy_after"],
    ) == (0.5, *[None] * 3)
    run.evaluation("after", (1.0, 1.0), (1.0, 1.0))  # of the new weights, under the same ordinals
    long = run.summary()
    assert (long["success_before"], long["success_after"], long["gain"], long["greedy_after"]) == (
        0.5,
        1.0,
        0.5,
        1.0,
    )
    assert long["evaluation"]["rollouts"] == dict.fromkeys(
        ("before_sampled", "before_greedy", "after_sampled", "after_greedy"), 2
    )
    run.set_status("done")
    run.extend(4)
    assert run.read(rollouts.rewards_of, "after_sampled@1") == [0.0, 0.0]
    assert run.read(rollouts.rewards_of, "after_sampled@3") == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
@pytest.mark.parametrize("state", ["pending", "running"])
def test_an_evaluation_that_has_not_ended_is_given_up_by_an_extension(recorded, kind, state):
    run = recorded(kind)
    run.evaluation("after", (1.0,), (1.0,))
    run.group("after_sampled", 1, (1.0,), state)
    run.set_status("evaluating_after")
    run.extend(3)
    assert stored(run.folder.store_url())[0].status == "training"
    assert run.read(rollouts.group_states, "after_sampled") == {}
    assert run.read(rollouts.group_states, "after_sampled@1") == {"complete": 1, "dropped": 1}
    assert run.store.write(lambda conn: rollouts.claim(conn, run.run_id, "node", 60.0, 9)) == []


@pytest.mark.parametrize("kind", ["inside", *OUTSIDE])
def test_tokens_that_the_end_of_a_run_excluded_may_be_trained_when_it_goes_on(recorded, kind):
    run = recorded(kind)
    run.group("train", 0, (1.0, 0.0))
    run.store.write(lambda conn: exclude_rest(conn, run.run_id))
    run.set_status("done")
    assert run.read(account).excluded_by_reason == {"run_ended": 4}
    run.extend(3)
    assert (run.read(account).excluded, run.read(account).unaccounted) == (0, 4)
    run.store.write(lambda conn: exclude_rest(conn, run.run_id))
    assert run.read(account).unaccounted == 0


class LateNode(LocalProcesses):
    """Processes that do nothing until they are ended. Then a call of the node's last rollout is recorded."""

    def __init__(self, run):
        super().__init__(run.folder, run.folder.config())
        self._run = run

    def open(self):
        pass

    def start_all(self, launch_plan):
        pass

    def close(self):
        assert self._run.status() == "done"
        self._run.group("train", 0, (1.0,))
        super().close()


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_node_still_samples_when_the_run_is_done_is_excluded(recorded, killed):
    run = recorded("inside")
    run.evaluation("after", (1.0,), (1.0,))
    if killed:  # by whoever ended it, between the end of the processes and that of the account
        run.set_status("done")
        run.group("train", 0, (1.0,))
    else:
        run.set_status("evaluating_after")
    with contextlib.closing(Supervisor(run.folder, children=LateNode(run))) as supervisor:
        assert supervisor.serve(lambda _: None) == "done"
    tokens = run.read(account)
    assert (tokens.sampled, tokens.unaccounted, tokens.excluded_by_reason) == (2, 0, {"run_ended": 2})


@pytest.mark.parametrize("status", ["evaluating_before", "training", "failed"])
def test_a_run_that_had_not_finished_is_extended_where_it_stands(recorded, status):
    run = recorded("inside")
    run.set_status(status)
    run.extend(3)
    assert stored(run.folder.store_url())[0].status == status
