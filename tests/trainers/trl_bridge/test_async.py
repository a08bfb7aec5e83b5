"""The worker and the transfer in TRL's own asynchronous trainer."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from harnessgym.errors import TrainerError
from harnessgym.store import TraceStore, advantages, ledger, policies, rollouts
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import STEPS
from tests.trainers.trl_bridge import cpu_shims
from tests.trainers.trl_bridge.test_grpo import close, our_gradients
from tests.trainers.trl_bridge.tiny import Gradients, off_policy_run, training_run
from trainers.trl_bridge.rollout_worker import RolloutWorker, async_arguments
from trainers.trl_bridge.weight_transfer import WeightTransfer
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own
cpu_shims.install()


def arguments(run, rows=1, **given):
    fixed = {"max_grad_norm": 1e9, "learning_rate": 1e-3, "disable_tqdm": True, "epsilon_high": 0.28}
    return AsyncGRPOConfig(**async_arguments(run, rows) | fixed | given)


def trained(run, rows=1, **given):
    args, gradients = arguments(run, rows, **given), Gradients()
    worker = RolloutWorker(run, args)
    ends = {"rollout_worker": worker, "weight_transfer": WeightTransfer(worker), "callbacks": [gradients]}
    prompts = Dataset.from_dict({"prompt": [""]})
    trainer = AsyncGRPOTrainer(str(run.model_folder()), args=args, train_dataset=prompts, **ends)
    trainer.train()
    return gradients.found, trainer


def groups_of_step(folder, run, step):
    """The rows of a step's groups, and what the ledger says that their rollouts were trained with."""
    from trainers.batch import load_group

    version = step
    with TraceStore.open(folder.store_url()) as store:
        ids = [
            item.id for item in store.read(lambda conn: ledger.trained_into(conn, run.policy_id, [version]))
        ]
        groups = [
            load_group(store, store.read(lambda conn, name=name: rollouts.group(conn, name))) for name in ids
        ]
        members = [member.rollout_id for group in groups for member in group.group.members]
        known = {
            name: store.read(lambda conn, name=name: advantages.of_rollout(conn, name))[0].value
            for name in members
        }
    return groups, known


@pytest.mark.parametrize(("branched", "rows"), [(0, 1), (0, 3), (2, 2)])
def test_the_gradient_is_that_of_our_own_trainer(tmp_path, branched, rows):
    folder = off_policy_run(tmp_path, groups=2 * STEPS, branched=branched, max_staleness=STEPS)
    with training_run(folder) as run:
        found, _ = trained(run, rows, max_steps=1)
        groups, given = groups_of_step(folder, run, 1)
        expected = our_gradients(run, groups, given, UpdateSettings(max_grad_norm=1e9))
        wrong = our_gradients(run, groups, given, UpdateSettings(max_grad_norm=1e9, proximal="current"))
    assert close(found, expected)
    assert not close(found, wrong)


@pytest.mark.parametrize("eta", [1, 2])
def test_each_step_is_a_batch_a_version_and_a_ledger_entry(tmp_path, eta):
    folder = off_policy_run(tmp_path, groups=2 * STEPS, lag=eta, max_staleness=eta)
    with training_run(folder) as run:
        _, trainer = trained(run)
    assert trainer.state.global_step == STEPS
    assert trainer.model_version == trainer.rollout_worker.model_version == STEPS + 1
    with TraceStore.open(folder.store_url()) as store:
        versions = store.read(lambda conn: policies.versions(conn, run.policy_id))
        assert [(item.version, item.parent_version) for item in versions] == [
            (0, None),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 3),
        ]
        assert store.read(lambda conn: rollouts.group_states(conn, run.run_id, "train")) == {
            "consumed": 2 * STEPS
        }
        stale = [
            store.read(lambda conn, n=n: ledger.trained_into(conn, run.policy_id, [n]))
            for n in range(1, STEPS + 1)
        ]
        assert [{group.max_staleness for group in step} for step in stale] == [
            {min(n, eta)} for n in range(STEPS)
        ]
        assert [[group.ordinal for group in step] for step in stale] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert verify(store).ok
        _, published = read_version(Path(versions[-1].path))
    assert all(torch.equal(published[name], weight) for name, weight in trainer.model.named_parameters())
    seen = [
        entry["sample/staleness_max"]
        for entry in trainer.state.log_history
        if "sample/staleness_max" in entry
    ]
    assert max(seen) <= eta


def test_a_batch_without_a_signal_is_a_step_that_learns_nothing(tmp_path):
    folder = off_policy_run(tmp_path, groups=2 * STEPS, max_staleness=STEPS, equal=True)
    with training_run(folder) as run:
        found, _ = trained(run)
        assert run.newest.step == STEPS
    assert all(not value.any() for value in found.values())


def test_a_trainer_that_is_started_again_goes_on(tmp_path):
    folder = off_policy_run(tmp_path, groups=2 * STEPS, max_staleness=STEPS)
    with training_run(folder) as run:
        trained(run, max_steps=1)
    with training_run(folder) as run:
        assert run.steps_left == STEPS - 1
        trained(run)
        with pytest.raises(TrainerError, match="max_steps"):
            RolloutWorker(run, arguments(run, max_steps=1))
    with TraceStore.open(folder.store_url()) as store:
        assert store.read(lambda conn: ledger.steps(conn, run.policy_id)) == [*range(1, STEPS + 1)]
        assert verify(store).ok


def test_what_stops_the_worker_stops_the_trainer(tmp_path):
    with training_run(off_policy_run(tmp_path, branched=1, max_staleness=STEPS)) as run:
        with pytest.raises(TrainerError, match="has 7 rows, and a step of TRL takes 6 samples"):
            trained(run)
        assert run.newest.step == 0


@pytest.mark.parametrize(
    ("advantage", "given", "problem"),
    [
        (
            "gdpo",
            {"weights": {"reward": 1, "process.short": 1}},
            r"has no reward under the channel 'process\.short'",
        ),
        ("ui_s1", {"channel": "process.short"}, r"names the channel 'process\.short'"),
    ],
)
def test_a_channel_that_never_occurs_stops_the_trainer(tmp_path, advantage, given, problem):
    named = {"advantage": advantage, "advantage_settings": given}
    with training_run(off_policy_run(tmp_path, groups=2 * STEPS, max_staleness=STEPS, **named)) as run:
        with pytest.raises(TrainerError, match=problem):
            trained(run)
        assert run.newest.step < STEPS


def test_a_model_that_is_not_the_newest_version_is_refused(tmp_path):
    with training_run(off_policy_run(tmp_path, max_staleness=1)) as run:
        run.begin({"w": torch.zeros(2)})
        run.begin({"w": torch.zeros(2)})
        with pytest.raises(TrainerError, match="not version 0"):
            run.begin({"w": torch.ones(2)})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"weight_sync_steps": 2}, "weight_sync_steps"),
        ({"token_budget": 100}, "token_budget"),
        ({"max_staleness": 0}, "max_staleness = 0"),
        ({"temperature": 0.7}, "temperature"),
        ({"max_steps": STEPS + 1}, "max_steps"),
    ],
)
def test_arguments_with_which_a_batch_is_no_step_are_refused(tmp_path, given, named):
    with (
        training_run(off_policy_run(tmp_path, max_staleness=1)) as run,
        pytest.raises(TrainerError, match=named),
    ):
        RolloutWorker(run, arguments(run, **given))


def test_a_synchronous_run_is_refused(tmp_path):
    with (
        training_run(off_policy_run(tmp_path, max_staleness=0)) as run,
        pytest.raises(TrainerError, match="fetches a batch ahead"),
    ):
        RolloutWorker(run, arguments(run))
