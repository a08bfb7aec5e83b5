"""A policy of transformers in the hands of the trainer: steps, resuming, versions, several processes."""

import copy

import pytest
import torch
from safetensors.torch import load_file

from harnessgym.errors import TrainerError
from tests.trainers.policies.families import tiny_model
from tests.trainers.recorded_run import make_run
from tests.trainers.test_trained_policy import ADVANTAGES, as_leader
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers.ppo_settings import CriticSettings
from trainers.trained_policy import TrainedPolicy

KINDS = ["qwen2", "qwen3_moe", "gpt_oss", "qwen3_5"]
"""Tied and untied heads, biases, experts in one tensor, and layers whose rows are padded."""
pytestmark = pytest.mark.timeout(180)


def config_of(name, folder, **trainer):
    model = tiny_model(name, tie_word_embeddings=name == "qwen2")
    model.save_pretrained(folder / "model")
    return make_run(folder / "run", folder / "model", **trainer).config()


def two_steps(trained_policy):
    """States after a step, after a second one, and after the second one again from the first's state."""
    trained_policy.update(make_rows(1), ADVANTAGES)
    first = copy.deepcopy(trained_policy.state())  # the optimizer's tensors go on
    trained_policy.update(make_rows(2), ADVANTAGES)
    second = copy.deepcopy(trained_policy.state())
    trained_policy.load(*first)
    trained_policy.update(make_rows(2), ADVANTAGES)
    return first, second, trained_policy.state()


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_step_is_the_same_bit_for_bit_and_starts_from_the_checkpoint(name, tmp_path):
    config = config_of(name, tmp_path)
    trained_policy = TrainedPolicy(config)
    stored = load_file(tmp_path / "model/model.safetensors")
    weights, _, _ = trained_policy.state()
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in stored.items())
    first, second, again = two_steps(trained_policy)
    assert any(not torch.equal(first[0][name], tensor) for name, tensor in second[0].items())
    assert all(torch.equal(again[0][name], tensor) for name, tensor in second[0].items())


@pytest.mark.parametrize("name", KINDS)
def test_two_processes_take_the_steps_of_one(name, tmp_path):
    config = config_of(name, tmp_path)
    (first, second, again), _ = together(tmp_path / "two", 2, as_leader, config, two_steps)
    alone = two_steps(TrainedPolicy(config))
    for found, expected in zip((first, second), alone, strict=False):
        assert found[0].keys() == expected[0].keys()
        for tensor_name, tensor in expected[0].items():
            # Adam divides small gradients by their size, so rounding shows.
            assert torch.allclose(found[0][tensor_name], tensor, rtol=1e-3, atol=5e-4), tensor_name
    assert all(torch.equal(again[0][tensor_name], tensor) for tensor_name, tensor in second[0].items())


def adapter_steps(trained_policy):
    trained_policy.update(make_rows(1), ADVANTAGES)
    return trained_policy.state()[0], trained_policy.adapter_state()


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_adapters_are_trained_in_shards_too(name, tmp_path):
    config = config_of(name, tmp_path, lora={"rank": 2}, gradient_checkpointing=True)
    (sharded, adapters), _ = together(tmp_path / "two", 2, as_leader, config, adapter_steps)
    weights, own = adapter_steps(TrainedPolicy(config))
    assert adapters["tensors"].keys() == own["tensors"].keys()
    for tensor_name, tensor in weights.items():
        assert torch.allclose(sharded[tensor_name], tensor, rtol=1e-3, atol=5e-4), tensor_name


def critic_steps(trained_policy):
    rows = make_rows(1)
    before = trained_policy.values(rows)
    targets = [value + 1.0 for value in before]
    metrics = [trained_policy.update_critic(rows, targets, before) for _ in range(3)]
    return before, [each.value_loss for each in metrics]


@pytest.mark.parametrize("name", ["gemma3", "mamba2"])
def test_a_critic_of_any_family_learns_its_targets_in_several_processes_too(name, tmp_path):
    config = config_of(name, tmp_path)

    def led(world):
        trained_policy = TrainedPolicy(config, world, critic=CriticSettings(lr=1e-2))
        if world.rank:
            trained_policy.follow()
            return None
        found = critic_steps(trained_policy)
        trained_policy.dismiss()
        return found

    (_, losses), _ = together(tmp_path / "two", 2, led)
    before, own = critic_steps(TrainedPolicy(config, critic=CriticSettings(lr=1e-2)))
    assert not any(value.any() for value in before)
    assert own[0] > own[1] > own[2]
    assert losses == pytest.approx(own, rel=1e-3)


def test_a_policy_whose_long_rows_have_their_own_passes_is_trained_by_one_process(tmp_path):
    config = config_of("phi3_longrope", tmp_path)

    def refused(world):
        with pytest.raises(TrainerError, match=r"trainer\.processes = 2.*Set it to 1"):
            TrainedPolicy(config, world)

    together(tmp_path / "two", 2, refused)
