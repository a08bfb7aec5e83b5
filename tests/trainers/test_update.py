"""One optimizer step: against a reference computed token by token, and what must not change it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.losses.normalisation import Normalisation
from trainers.policy import Policy, PolicyConfig
from trainers.update import UpdateSettings, make_optimizer, micro_batches, policy_update

CONFIG = PolicyConfig(
    vocab_size=23,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
)
SETTINGS = UpdateSettings(lr=1e-3, proximal="current")


def make_policy() -> Policy:
    torch.manual_seed(7)
    policy = Policy(CONFIG)
    for parameter in policy.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return policy


def make_rows(seed: int = 0, count: int = 5) -> list[Row]:
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        length = int(random.integers(4, 14))
        mask = random.integers(0, 2, length).astype(np.int32)
        mask[0], mask[-1] = 0, 1
        logprobs = np.where(mask == 1, random.uniform(-5, -0.5, length), 0.0).astype(np.float32)
        ids = random.integers(0, CONFIG.vocab_size, length).astype(np.int32)
        rows.append(Row(f"rollout {index}", "group", ids, mask, logprobs, np.where(mask == 1, 3, -1).astype(np.int32)))
    return rows


def split_row(row: Row, left: list[bool]) -> list[Row]:
    """Two rows of the same rollout whose masks are disjoint and add up to the row's."""
    parts = []
    for side in (True, False):
        mask = np.where(np.array(left) == side, row.mask, 0).astype(np.int32)
        logprobs = np.where(mask == 1, row.logprobs, 0).astype(np.float32)
        parts.append(Row(row.rollout_id, row.group_id, row.ids, mask, logprobs, np.where(mask == 1, row.versions, -1)))
    return parts


def gradient(rows: list[Row], advantages: list[float | FloatArray], options: UpdateSettings) -> FloatArray:
    """The gradient that the step used (no step is taken at the smallest learning rate that is allowed)."""
    policy = make_policy()
    policy_update(policy, make_optimizer(policy, options), rows, advantages, options)
    grads = [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
    return torch.cat(grads).numpy()


def reference(policy: Policy, rows: list[Row], advantages: list[float], options: UpdateSettings) -> dict[str, float]:
    """Loss and metrics by loops over tokens in float64; the proximal policy is the current one, so its ratio is 1."""
    loss, ratios, entropy, counts = 0.0, [], [], [int(row.mask.sum()) for row in rows]
    for row, advantage, count in zip(rows, advantages, counts, strict=True):
        scores = policy(torch.tensor(row.ids[None]).long())[0].detach().double().numpy() / options.temperature
        for t in range(1, len(row.ids)):
            if row.mask[t]:
                log_z = math.log(sum(math.exp(score) for score in scores[t - 1]))
                logprob = scores[t - 1][row.ids[t]] - log_z
                ratio = math.exp(logprob - float(row.logprobs[t]))
                share = 1 / sum(counts) if options.normalisation == "token" else 1 / len(rows) / count
                loss -= share * min(ratio, options.tis_cap) * advantage
                ratios.append(ratio)
                entropy.append(-logprob)
    squares = sum(ratio**2 for ratio in ratios)
    return {
        "loss": loss,
        "mean_ratio": sum(ratios) / len(ratios),
        "ess": sum(ratios) ** 2 / squares / len(ratios),
        "kl": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / len(ratios),
        "entropy": sum(entropy) / len(entropy),
        "clip_fraction": 0.0,
        "tokens": float(len(ratios)),
        "rollouts": float(len(rows)),
    }


@pytest.mark.parametrize("normalisation", ["token", "rollout"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_metrics_equal_a_loop_over_tokens(normalisation: Normalisation, temperature: float) -> None:
    options = UpdateSettings(normalisation=normalisation, temperature=temperature, micro_batch_tokens=30, proximal="current")
    rows, advantages = make_rows(), [1.0, -0.5, 0.25, 2.0, -1.5]
    policy = make_policy()
    expected = reference(policy, rows, advantages, options)
    metrics = policy_update(policy, make_optimizer(policy, options), rows, advantages, options)
    for name, value in expected.items():
        assert getattr(metrics, name) == pytest.approx(value, rel=2e-4, abs=1e-6), name
    assert metrics.grad_norm > 0


def test_gradient_equals_finite_differences_of_the_loss() -> None:
    """With weights frozen at pi_old / mu, the loss is sum of share * w * -(pi / pi_old) A; its slope is the gradient."""
    rows, advantages = make_rows(3), [1.0, -1.0, 0.5, 0.5, -2.0]
    policy = make_policy()
    optimizer = make_optimizer(policy, SETTINGS)
    shares = 1 / sum(int(row.mask.sum()) for row in rows)
    weight = policy.embed_tokens.weight.data.clone()
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))

    def logprobs() -> list[torch.Tensor]:
        out = []
        for row in rows:
            scores = policy(torch.tensor(row.ids[None]).long())[0].detach().double().log_softmax(-1)
            out.append(torch.stack([scores[t - 1, row.ids[t]] if t else torch.tensor(0.0) for t in range(len(row.ids))]))
        return out

    old = logprobs()

    def loss(step: float) -> float:
        policy.embed_tokens.weight.data = weight + step * direction
        total = 0.0
        for row, new, before, advantage in zip(rows, logprobs(), old, advantages, strict=True):
            w = (before - torch.tensor(row.logprobs)).exp().clamp(max=2.0)
            total -= float((torch.tensor(row.mask) * w * (new - before).exp() * advantage).sum()) * shares
        return total

    slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
    policy.embed_tokens.weight.data = weight.clone()
    unclipped = SETTINGS.model_copy(update={"max_grad_norm": 1e9})
    policy_update(policy, optimizer, rows, advantages, unclipped)
    assert policy.embed_tokens.weight.grad is not None
    assert float((policy.embed_tokens.weight.grad * direction).sum()) == pytest.approx(slope, rel=2e-2, abs=1e-4)


@pytest.mark.parametrize("normalisation", ["token", "rollout"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_splitting_rollouts_into_rows_leaves_the_gradient(normalisation: Normalisation, data: st.DataObject) -> None:
    rows, advantages = make_rows(data.draw(st.integers(0, 99))), [1.0, -0.5, 0.25, 2.0, -1.5]
    proximal = data.draw(st.sampled_from(["behaviour", "current"]))
    options = UpdateSettings(normalisation=normalisation, max_grad_norm=1e9, proximal=proximal)
    split: list[Row] = []
    split_advantages: list[float | FloatArray] = []
    for row, advantage in zip(rows, advantages, strict=True):
        left = data.draw(st.lists(st.booleans(), min_size=len(row.ids), max_size=len(row.ids)))
        split += split_row(row, left)
        split_advantages += [advantage, advantage]
    np.testing.assert_allclose(
        gradient(split, split_advantages, options), gradient(rows, list(advantages), options), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10_000])
def test_micro_batches_change_only_rounding(micro_batch_tokens: int) -> None:
    rows, advantages = make_rows(), [1.0, -0.5, 0.25, 2.0, -1.5]
    options = SETTINGS.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    np.testing.assert_allclose(
        gradient(rows, list(advantages), options), gradient(rows, list(advantages), SETTINGS), rtol=1e-4, atol=1e-6
    )


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths: list[int], limit: int) -> None:
    groups = list(micro_batches(lengths, limit))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[index] for index in group) * len(group) <= limit


def test_equal_inputs_give_bit_equal_weights() -> None:
    outcomes = []
    for _ in range(2):
        policy = make_policy()
        optimizer = make_optimizer(policy, SETTINGS)
        for seed in range(3):
            policy_update(policy, optimizer, make_rows(seed), [1.0, -0.5, 0.25, 2.0, -1.5], SETTINGS)
        outcomes.append(torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]))
    assert torch.equal(*outcomes)


def test_advantages_may_differ_along_a_row() -> None:
    rows = make_rows(count=2)
    per_token = [np.full(len(row.ids), value, dtype=np.float32) for row, value in zip(rows, (1.0, -1.0), strict=True)]
    np.testing.assert_array_equal(gradient(rows, list(per_token), SETTINGS), gradient(rows, [1.0, -1.0], SETTINGS))
    per_token[0][rows[0].mask == 0] = 99.0
    np.testing.assert_array_equal(gradient(rows, list(per_token), SETTINGS), gradient(rows, [1.0, -1.0], SETTINGS))


def test_the_step_raises_the_probability_of_what_was_rewarded() -> None:
    policy, rows = make_policy(), make_rows(count=1)
    optimizer = make_optimizer(policy, SETTINGS)
    entropies = [policy_update(policy, optimizer, rows, [1.0], SETTINGS).entropy for _ in range(20)]
    assert entropies[-1] < entropies[0] - 0.1


def test_a_proximal_policy_other_than_the_current_one_is_clipped_against() -> None:
    rows = make_rows()
    policy = make_policy()
    far = [np.where(row.mask == 1, row.logprobs - 20, 0).astype(np.float32) for row in rows]
    metrics = policy_update(policy, make_optimizer(policy, SETTINGS), rows, [1.0] * 5, SETTINGS, proximal=far)
    assert metrics.clip_fraction == 1.0
    assert metrics.grad_norm == 0.0


def test_clipping_against_the_behaviour_policy_is_the_same_as_passing_its_logprobs() -> None:
    rows, by_setting = make_rows(), SETTINGS.model_copy(update={"proximal": "behaviour"})
    moved = []
    for options, proximal in ((by_setting, None), (SETTINGS, [row.logprobs for row in rows])):
        policy = make_policy()
        metrics = policy_update(policy, make_optimizer(policy, options), rows, [1.0] * 5, options, proximal)
        moved.append((metrics, policy.norm.detach()))
    assert moved[0][0] == moved[1][0]
    assert torch.equal(moved[0][1], moved[1][1])
    outside = sum(moved_ratio > 1.28 for moved_ratio in _ratios(rows)) / moved[0][0].tokens
    assert moved[0][0].clip_fraction == pytest.approx(outside)


def _ratios(rows: list[Row]) -> list[float]:
    """pi / mu of every trained token."""
    ratios = []
    for row in rows:
        scores = make_policy()(torch.tensor(row.ids[None]).long())[0].detach().log_softmax(-1)
        ratios += [math.exp(float(scores[t - 1, row.ids[t]] - row.logprobs[t])) for t in range(1, len(row.ids)) if row.mask[t]]
    return ratios


def test_learning_rate_of_the_step_is_the_setting() -> None:
    moved = []
    for lr in (1e-4, 2e-4):
        policy = make_policy()
        before = policy.norm.detach().clone()
        policy_update(policy, make_optimizer(policy, SETTINGS), make_rows(), [1.0] * 5, SETTINGS.model_copy(update={"lr": lr}))
        moved.append(float((policy.norm.detach() - before).abs().mean()))
    assert moved[1] == pytest.approx(2 * moved[0], rel=1e-2)


def test_what_cannot_be_trained_is_refused_and_changes_nothing() -> None:
    policy, rows = make_policy(), make_rows(count=2)
    optimizer = make_optimizer(policy, SETTINGS)
    before = policy.norm.detach().clone()
    untrained = [part for row in rows for part in split_row(row, [True] * len(row.ids))[1:]]
    first = Row("r", "g", rows[0].ids, np.ones_like(rows[0].mask), rows[0].logprobs, rows[0].versions)
    cases: list[tuple[list[Row], list[float | FloatArray], str]] = [
        (rows, [1.0], "2 rows"),
        (untrained, [1.0, 1.0], "no trained token"),
        ([], [], "no trained token"),
        (rows, [1.0, np.ones(3, dtype=np.float32)], "row's length"),
        ([first], [1.0], "first token"),
        (rows, [1.0, float("nan")], "not finite"),
    ]
    for bad_rows, advantages, message in cases:
        with pytest.raises(TrainerError, match=message):
            policy_update(policy, optimizer, bad_rows, advantages, SETTINGS)
    assert torch.equal(policy.norm.detach(), before)
