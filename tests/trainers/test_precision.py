"""bfloat16 products: how far from float32 they may be, and what stays float32."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.peers import peer_and_policy
from tests.trainers.recorded_run import make_run, save_model
from tests.trainers.test_packing import forests
from tests.trainers.test_trained_policy import ADVANTAGES
from tests.trainers.test_update import make_rows
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.trained_policy import TrainedPolicy
from trainers.value_function import Critic

BOUND = 1.4e-2
"""Twice the largest difference of a log-probability that was measured between bfloat16 and float32 on
policies of this size: processors round differently."""
SHAPES = [
    NativeConfig(512, 64, 192, 2, 4, 2, 16),
    NativeConfig(512, 64, 192, 2, 4, 2, 16, qk_norm=False, tie_word_embeddings=False),
]


def logprobs(policy, rows):
    with torch.no_grad():
        return policy.logprobs(rows, [np.arange(len(row)) > 0 for row in rows])


def in_bfloat16(policy):
    other = copy.deepcopy(policy)
    other.products = torch.bfloat16
    return other


@pytest.mark.parametrize("config", SHAPES, ids=["qwen3", "llama"])
def test_logprobs_are_float32_and_nearer_to_the_float32_policy_than_if_all_were_bfloat16(config):
    torch.manual_seed(0)
    policy = NativePolicy(config)
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, config.vocab_size, 200).astype(np.int32) for _ in range(8)]
    exact, found, cast = (
        logprobs(each, rows) for each in (policy, in_bfloat16(policy), copy.deepcopy(policy).bfloat16())
    )
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < BOUND
    assert (found - exact).abs().mean() < (cast - exact).abs().mean()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=forests(), family=st.sampled_from(["qwen3", "llama"]))
def test_packed_rows_are_as_near_as_whole_ones(rows, family):
    _, policy = peer_and_policy(family)
    found, exact = logprobs(in_bfloat16(policy), rows), logprobs(policy, rows)
    assert torch.allclose(found, exact, atol=BOUND)


def trainee_of(tmp_path, name, **trainer):
    return TrainedPolicy(
        make_run(
            tmp_path / name,
            save_model(tmp_path / "model"),
            update={"lr": 0.01, "max_grad_norm": 1e9},
            **trainer,
        ).config()
    )


def test_a_step_is_close_to_that_of_float32_and_weights_and_optimizer_stay_float32(tmp_path):
    exact, close = trainee_of(tmp_path, "float32"), trainee_of(tmp_path, "bfloat16", dtype="bfloat16")
    assert close.policy.products == torch.bfloat16
    metrics = [each.update(make_rows(1), ADVANTAGES) for each in (exact, close)]
    gradients = [
        torch.cat([parameter.grad.flatten() for parameter in each.policy.parameters()])
        for each in (exact, close)
    ]
    assert 0 < (gradients[1] - gradients[0]).norm() < 0.02 * gradients[0].norm()
    assert metrics[1].loss == pytest.approx(metrics[0].loss, rel=1e-2)
    assert metrics[1].mean_ratio == pytest.approx(metrics[0].mean_ratio, rel=1e-2)
    assert metrics[1].kl == pytest.approx(metrics[0].kl, rel=2e-2)
    assert {parameter.dtype for parameter in close.policy.parameters()} == {torch.float32}
    assert {value.dtype for values in close.optimizer.state.values() for value in values.values()} == {
        torch.float32
    }
    assert {tensor.dtype for tensor in close.state()[0].values()} == {torch.float32}


def test_gradients_too_small_for_bfloat16_weights_still_move_them(tmp_path):
    """A step of 1e-6 of a weight is lost where weights themselves are bfloat16."""
    trained_policy = TrainedPolicy(
        make_run(
            tmp_path / "run", save_model(tmp_path / "model"), dtype="bfloat16", update={"lr": 1e-6}
        ).config()
    )
    before = trained_policy.policy.norm.detach().clone()
    trained_policy.update(make_rows(1), ADVANTAGES)
    moved = trained_policy.policy.norm.detach()
    assert not torch.equal(moved, before)
    assert torch.equal(moved.bfloat16(), before.bfloat16())


def test_the_critic_computes_in_what_its_policy_does(tmp_path):
    torch.manual_seed(0)
    policy = in_bfloat16(NativePolicy(SHAPES[0]))
    critic, exact = Critic(policy), Critic(policy)
    exact.trunk.products = torch.float32
    assert critic.trunk.products == torch.bfloat16
    torch.nn.init.normal_(critic.head.weight)
    exact.load_state_dict(critic.state_dict())
    row = np.arange(50, dtype=np.int32)
    values = [each.values([row], [row > 0]) for each in (critic, exact)]
    assert values[0].dtype == torch.float32
    assert 0 < (values[0] - values[1]).abs().max() < 0.02 * values[1].abs().max()
