"""The bridge to GRPOTrainer against the installed TRL."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from harnessgym.errors import TrainerError
from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore, advantages, ledger, policies, rollouts
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import STEPS, make_run
from tests.trainers.trl_bridge.tiny import REWARDS, Gradients, off_policy_run, save_tiny, training_run
from trainers.optimizer import make_optimizer
from trainers.policies.loading import load_policy
from trainers.policy import token_logprobs
from trainers.trl_bridge.grpo import RunGRPOTrainer, grpo_arguments
from trainers.trl_bridge.samples import fields_of, recorded_reward, samples_of
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own


def arguments(run, **given):
    fixed = {
        "max_grad_norm": 1e9,
        "learning_rate": 1e-3,
        "max_steps": 1,
        "disable_tqdm": True,
        "epsilon_high": 0.28,
    }
    return GRPOConfig(**grpo_arguments(run) | fixed | given)


def bridged(run, *, proximal="behaviour", correction=None, **given):
    gradients = Gradients()
    more = {"correction": correction} if correction else {}
    trainer = RunGRPOTrainer(run, arguments(run, **given), proximal=proximal, callbacks=[gradients], **more)
    trainer.train()
    return gradients.found, trainer


def plain(run, shift):
    """Gradients of TRL's own trainer when the recorded logprobs are wrong by `shift`."""
    run.begin({"w": torch.zeros(1)})
    batch = samples_of(run.take().groups, run.options.group_size)
    moved = [replace(sample, logprobs=[value + shift for value in sample.logprobs]) for sample in batch.first]
    gradients = Gradients()
    GRPOTrainer(
        model=run.config.policy.path,
        args=arguments(run),
        reward_funcs=recorded_reward,
        rollout_func=lambda prompts, trainer: fields_of(moved),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 2}),
        callbacks=[gradients],
    ).train()
    return gradients.found


def our_gradients(run, groups, given, settings):
    """What our own trainer's loss gives on the same rows with the same advantages."""
    policy = load_policy(Path(run.config.policy.path))
    rows = [row for group in groups for member in group.rows for row in member]
    policy_update(
        policy, make_optimizer(policy, settings), rows, [given[row.rollout_id] for row in rows], settings
    )
    return policy.published({name: weight.grad for name, weight in policy.named_parameters()})


def close(one, other, tolerance=2e-4):
    assert one.keys() == other.keys()
    scale = max(float(value.abs().max()) for value in one.values())
    return all(torch.allclose(one[name], other[name], rtol=tolerance, atol=tolerance * scale) for name in one)


def test_plain_grpo_trainer_ignores_the_recorded_logprobs(tmp_path):
    found = []
    for shift in (0.0, -2.0):
        with training_run(off_policy_run(tmp_path / str(shift))) as run:
            found.append(plain(run, shift))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("proximal", ["behaviour", "current"])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_gradient_is_that_of_our_own_trainer(tmp_path, proximal, accumulated):
    with training_run(off_policy_run(tmp_path)) as run:
        parts = {"per_device_train_batch_size": 6 // accumulated, "gradient_accumulation_steps": accumulated}
        found, trainer = bridged(run, proximal=proximal, **parts)
        settings = UpdateSettings(proximal=proximal, max_grad_norm=1e9)
        taken = trainer.rollouts.taken.groups
        expected = our_gradients(run, taken, trainer.advantages, settings)
        other = "current" if proximal == "behaviour" else "behaviour"
        wrong = our_gradients(run, taken, trainer.advantages, settings.model_copy(update={"proximal": other}))
    assert close(found, expected)
    assert not close(found, wrong)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_rollout_of_several_rows_weighs_what_its_tokens_weigh(tmp_path, accumulated):
    with training_run(off_policy_run(tmp_path, branched=2)) as run:
        parts = {"per_device_train_batch_size": 6 // accumulated, "gradient_accumulation_steps": accumulated}
        found, trainer = bridged(run, **parts)
        assert len(trainer.rollouts.batch.further) == 2
        expected = our_gradients(
            run, trainer.rollouts.taken.groups, trainer.advantages, UpdateSettings(max_grad_norm=1e9)
        )
    assert close(found, expected)


@pytest.mark.parametrize(
    ("given", "named"), [({"loss_type": "grpo"}, "takes a mean over samples"), ({"beta": 0.1}, "beta = 0")]
)
def test_rollouts_of_several_rows_are_refused_where_they_would_count_wrong(tmp_path, given, named):
    with training_run(off_policy_run(tmp_path, branched=1)) as run, pytest.raises(TrainerError, match=named):
        bridged(run, **given)


def test_a_place_without_a_graded_rollout_changes_nothing(tmp_path):
    folder = off_policy_run(tmp_path)
    with TraceStore.open(folder.store_url()) as store:
        store.write(
            lambda conn: conn.exec_driver_sql("UPDATE rollouts SET status = 'failed' WHERE slot = 1").rowcount
        )
    with training_run(folder) as run:
        found, trainer = bridged(run)
        expected = our_gradients(
            run, trainer.rollouts.taken.groups, trainer.advantages, UpdateSettings(max_grad_norm=1e9)
        )
    members = [member for group in trainer.rollouts.taken.groups for member in group.group.members]
    assert [(member.slot, round(trainer.advantages[member.rollout_id], 3)) for member in members] == 2 * [
        (0, 0.707),
        (2, -0.707),
    ]
    assert close(found, expected)


def band(log_ratio_N):
    """IcePop: the ratio within [0.5, 2], else nothing."""
    ratio_N = log_ratio_N.exp()
    return torch.where((ratio_N >= 0.5) & (ratio_N <= 2), ratio_N, 0.0)


def test_what_a_correction_masks_still_counts_in_the_denominator(tmp_path):
    with training_run(off_policy_run(tmp_path)) as run:
        found, trainer = bridged(run, proximal="current", correction=band)
        policy, given = load_policy(Path(run.config.policy.path)), trainer.advantages
        rows = [row for group in trainer.rollouts.taken.groups for member in group.rows for row in member]
    with torch.no_grad():
        ids = [torch.from_numpy(row.ids).long()[None] for row in rows]
        ratios = [
            token_logprobs(policy(each), each)[0].numpy() - row.logprobs
            for each, row in zip(ids, rows, strict=True)
        ]
    kept = [(abs(ratio) <= np.log(2)) & (row.mask != 0) for ratio, row in zip(ratios, rows, strict=True)]
    assert 0 < sum(one.sum() for one in kept) < sum(row.mask.sum() for row in rows)
    settings = UpdateSettings(proximal="current", max_grad_norm=1e9)  # whose cap is the band's end
    advantages_T = [
        (given[row.rollout_id] * one).astype(np.float32) for row, one in zip(rows, kept, strict=True)
    ]
    policy_update(policy, make_optimizer(policy, settings), rows, advantages_T, settings)
    expected = policy.published({name: weight.grad for name, weight in policy.named_parameters()})
    assert close(found, expected)


def test_steps_make_versions_a_ledger_and_consumed_groups(tmp_path):
    folder = off_policy_run(tmp_path, groups=4, max_staleness=STEPS)
    with training_run(folder) as run:
        _, trainer = bridged(run, max_steps=2, scale_rewards="none")
    with TraceStore.open(folder.store_url()) as store:
        versions = store.read(lambda conn: policies.versions(conn, run.policy_id))
        assert [(item.version, item.parent_version, item.step) for item in versions] == [
            (0, None, 0),
            (1, 0, 1),
            (2, 1, 2),
        ]
        assert store.read(lambda conn: ledger.steps(conn, run.policy_id)) == [1, 2]
        assert store.read(lambda conn: rollouts.group_states(conn, run.run_id, "train")) == {"consumed": 4}
        assert verify(store).ok
        member = trainer.rollouts.taken.groups[0].group.members[0]
        known = store.read(lambda conn: advantages.of_rollout(conn, member.rollout_id))
        mean = sum(REWARDS[0]) / 3
        assert {round(item.value, 5) for item in known} == {round(member.reward - mean, 5)}
        _, published = read_version(Path(versions[-1].path))
    trained = dict(trainer.model.named_parameters())
    assert published.keys() == trained.keys()
    assert all(torch.equal(published[name], trained[name]) for name in published)


def test_a_trainer_that_is_started_again_goes_on_from_the_newest_version(tmp_path):
    folder = off_policy_run(tmp_path, groups=2 * STEPS, max_staleness=STEPS)
    with training_run(folder) as run:
        _, first = bridged(run)
        run.take()  # and dies before it has made a version
    with training_run(folder) as run:
        trainer = RunGRPOTrainer(run, arguments(run, max_steps=run.steps_left))
        start = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
        assert all(torch.equal(start[name], weight) for name, weight in first.model.named_parameters())
        trainer.train()
        assert run.steps_left == 0
        assert trainer.train() is None
        with pytest.raises(TrainerError, match="no further batch"):
            run.take()
    with TraceStore.open(folder.store_url()) as store:
        assert store.read(lambda conn: ledger.steps(conn, run.policy_id)) == [*range(1, STEPS + 1)]
        assert store.read(lambda conn: rollouts.group_states(conn, run.run_id, "train")) == {
            "consumed": 2 * STEPS
        }


def test_another_trainer_is_refused(tmp_path):
    with training_run(off_policy_run(tmp_path)) as run:
        run.begin({"w": torch.zeros(1)})
        ours = RunGRPOTrainer(run, arguments(run))
        with pytest.raises(TrainerError, match="does not use them without vLLM"):
            ours.rollouts([""] * 6, object())
        with pytest.raises(TrainerError, match="asks for 3 rollouts"):
            ours.rollouts([""] * 3, ours)
        assert run.pending == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"temperature": 0.5}, "temperature = 0.5"),
        ({"num_iterations": 2}, "num_iterations = 2"),
        ({"per_device_train_batch_size": 3}, "generation_batch_size = 3"),
        ({"steps_per_generation": 2, "per_device_train_batch_size": 3}, "steps_per_generation = 2"),
    ],
)
def test_arguments_that_make_no_version_of_a_batch_are_refused(tmp_path, given, named):
    with training_run(off_policy_run(tmp_path)) as run, pytest.raises(TrainerError, match=named):
        RunGRPOTrainer(run, arguments(run, **given))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"processes": 2}, "trainer.processes"),
        ({"stream": True}, "trainer.stream"),
        ({"reward_shuffle": True}, "trainer.reward_shuffle"),
        ({"steps_kept": 0.8}, "filter.steps_kept"),
        ({"reuse": 1}, "replay.reuse"),
        ({"success_pool": 1}, "replay.success_pool"),
    ],
)
def test_a_run_that_only_our_trainer_can_train_is_refused(tmp_path, given, named):
    folder = off_policy_run(tmp_path, **given)
    with pytest.raises(TrainerError, match=f"^{named} is only supported by HarnessGym"):
        training_run(folder)


@pytest.mark.parametrize("selector", ["dars", "gdro", "xrpo"])
def test_selectors_that_make_groups_larger_are_refused(tmp_path, selector):
    folder = off_policy_run(tmp_path)
    config = folder.config()
    told = config.model_copy(update={"generate": config.generate.model_copy(update={"selector": selector})})
    write_json(folder.config_path, told.model_dump(mode="json"))
    with (
        training_run(folder) as run,
        pytest.raises(TrainerError, match=f"The selector {selector} may submit groups"),
    ):
        RunGRPOTrainer(run, arguments(run))


def test_a_run_of_several_policies_is_refused(tmp_path):
    folder = make_run(tmp_path / "run", save_tiny(tmp_path / "model"), further=["second"])
    with pytest.raises(TrainerError, match="several"):
        training_run(folder)


def test_an_adapter_is_refused(tmp_path):
    with training_run(off_policy_run(tmp_path)) as run, pytest.raises(TrainerError, match="peft_config"):
        RunGRPOTrainer(run, arguments(run), peft_config=object())


def test_weights_without_a_batch_are_refused(tmp_path):
    with training_run(off_policy_run(tmp_path)) as run:
        with pytest.raises(TrainerError, match="call `begin` first"):
            run.take()
        run.begin({"w": torch.zeros(1)})
        with pytest.raises(TrainerError, match="No batch was taken"):
            run.commit({"w": torch.ones(1)}, ())


def test_weights_that_are_not_finite_are_not_published(tmp_path):
    with training_run(off_policy_run(tmp_path)) as run:
        run.begin({"w": torch.zeros(1)})
        run.take()
        with pytest.raises(TrainerError, match="Tensor w is not finite"):
            run.commit({"w": torch.tensor([float("nan")])}, ())
        assert (run.newest.version, run.pending) == (0, 1)
