"""One optimizer step: against a reference computed token by token, and what must not change it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from harnessgym.registry import names
from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.losses.normalisation import Normalisation
from trainers.optimizer import EagerAdamW, make_optimizer
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.update import GradientAccumulation, UpdateMetrics, policy_update
from trainers.update_settings import UpdateSettings

CONFIG = NativeConfig(
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


def make_policy() -> NativePolicy:
    torch.manual_seed(7)
    policy = NativePolicy(CONFIG)
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
        rows.append(
            Row(f"rollout {index}", "group", ids, mask, logprobs, np.where(mask == 1, 3, -1).astype(np.int32))
        )
    return rows


def split_row(row: Row, left: list[bool]) -> list[Row]:
    """Two rows of the same rollout whose masks are disjoint and add up to the row's."""
    parts = []
    for side in (True, False):
        mask = np.where(np.array(left) == side, row.mask, 0).astype(np.int32)
        logprobs = np.where(mask == 1, row.logprobs, 0).astype(np.float32)
        parts.append(
            Row(row.rollout_id, row.group_id, row.ids, mask, logprobs, np.where(mask == 1, row.versions, -1))
        )
    return parts


def gradient(
    rows: list[Row],
    advantages: list[float | FloatArray],
    options: UpdateSettings,
    dtype: torch.dtype = torch.float32,
) -> FloatArray:
    """The gradient that the step used (no step is taken at the smallest learning rate that is allowed)."""
    policy = make_policy().to(dtype)
    policy_update(policy, make_optimizer(policy, options), rows, advantages, options)
    grads = [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
    return torch.cat(grads).numpy()


def reference(
    policy: NativePolicy, rows: list[Row], advantages: list[float], options: UpdateSettings
) -> dict[str, float]:
    """Loss and metrics by loops over tokens in float64; the proximal policy is the current one, so its
    ratio is 1.
    """
    loss, ratios, entropy, counts = 0.0, [], [], [int(row.mask.sum()) for row in rows]
    for row, advantage, count in zip(rows, advantages, counts, strict=True):
        scores = policy(torch.tensor(row.ids[None]).long())[0].detach().double().numpy() / options.temperature
        for t in range(1, len(row.ids)):
            if row.mask[t]:
                log_z = math.log(sum(math.exp(score) for score in scores[t - 1]))
                logprob = scores[t - 1][row.ids[t]] - log_z
                ratio = math.exp(logprob - float(row.logprobs[t]))
                share = 1 / sum(counts) if options.normalisation == "token" else 1 / len(rows) / count
                loss -= share * min(ratio, 2.0) * advantage
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
    options = UpdateSettings(
        normalisation=normalisation, temperature=temperature, micro_batch_tokens=30, proximal="current"
    )
    rows, advantages = make_rows(), [1.0, -0.5, 0.25, 2.0, -1.5]
    policy = make_policy()
    expected = reference(policy, rows, advantages, options)
    metrics = policy_update(policy, make_optimizer(policy, options), rows, advantages, options)
    for name, value in expected.items():
        assert getattr(metrics, name) == pytest.approx(value, rel=2e-4, abs=1e-6), name
    assert metrics.grad_norm > 0


def test_gradient_equals_finite_differences_of_the_loss() -> None:
    """With weights frozen at pi_old / mu, the loss is sum of share * w * -(pi / pi_old) A; its slope is
    the gradient.
    """
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
            out.append(
                torch.stack(
                    [scores[t - 1, row.ids[t]] if t else torch.tensor(0.0) for t in range(len(row.ids))]
                )
            )
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
    assert float((policy.embed_tokens.weight.grad * direction).sum()) == pytest.approx(
        slope, rel=2e-2, abs=1e-4
    )


@pytest.mark.parametrize("normalisation", ["token", "rollout"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_splitting_rollouts_into_rows_leaves_the_gradient(
    normalisation: Normalisation, data: st.DataObject
) -> None:
    rows, advantages = make_rows(data.draw(st.integers(0, 99))), [1.0, -0.5, 0.25, 2.0, -1.5]
    proximal = data.draw(st.sampled_from(["behaviour", "current"]))
    options = UpdateSettings(normalisation=normalisation, max_grad_norm=1e9, proximal=proximal)
    split: list[Row] = []
    split_advantages: list[float | FloatArray] = []
    for row, advantage in zip(rows, advantages, strict=True):
        left = data.draw(st.lists(st.booleans(), min_size=len(row.ids), max_size=len(row.ids)))
        split += split_row(row, left)
        split_advantages += [advantage, advantage]
    found, expected = (
        gradient(some, values, options, torch.float64)
        for some, values in ((split, split_advantages), (rows, list[float | FloatArray](advantages)))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * float(np.abs(expected).max()))


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10_000])
def test_micro_batches_change_only_rounding(micro_batch_tokens: int) -> None:
    rows, advantages = make_rows(), [1.0, -0.5, 0.25, 2.0, -1.5]
    options = SETTINGS.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    np.testing.assert_allclose(
        gradient(rows, list(advantages), options),
        gradient(rows, list(advantages), SETTINGS),
        rtol=1e-4,
        atol=1e-6,
    )


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
    per_token = [
        np.full(len(row.ids), value, dtype=np.float32) for row, value in zip(rows, (1.0, -1.0), strict=True)
    ]
    np.testing.assert_array_equal(
        gradient(rows, list(per_token), SETTINGS), gradient(rows, [1.0, -1.0], SETTINGS)
    )
    per_token[0][rows[0].mask == 0] = 99.0
    np.testing.assert_array_equal(
        gradient(rows, list(per_token), SETTINGS), gradient(rows, [1.0, -1.0], SETTINGS)
    )


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
        ratios += [
            math.exp(float(scores[t - 1, row.ids[t]] - row.logprobs[t]))
            for t in range(1, len(row.ids))
            if row.mask[t]
        ]
    return ratios


def test_learning_rate_of_the_step_is_the_setting() -> None:
    moved = []
    for lr in (1e-4, 2e-4):
        policy = make_policy()
        before = policy.norm.detach().clone()
        policy_update(
            policy,
            make_optimizer(policy, SETTINGS),
            make_rows(),
            [1.0] * 5,
            SETTINGS.model_copy(update={"lr": lr}),
        )
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


FORMS = {
    "ppo": {"loss": "ppo"},
    "dppo_tv": {"loss": {"name": "dppo_tv", "kl": 0.01}},
    "gspo": {"loss": {"name": "gspo", "clip_low": 0.1, "clip_high": 0.5}},
    "cispo": {"loss": "cispo"},
    "minpro": {"loss": {"name": "minpro", "clip_low": 0.9, "clip_high": 9.0}},
    "decoupled_ppo": {"loss": "decoupled_ppo", "proximal": "loglinear", "corrections": ["mis"]},
    "reinforce, tis of sequences": {
        "loss": "reinforce",
        "proximal": "current",
        "corrections": [{"name": "tis", "level": "sequence", "cap": 8.0}],
    },
    "icepop of sequences": {
        "proximal": "current",
        "corrections": [{"name": "icepop", "level": "sequence", "low": 1e-3, "high": 1e3}],
    },
    "geometric": {"corrections": [{"name": "geometric", "against": "current", "low": 0.5, "high": 2.0}]},
    "opsm": {"corrections": [{"name": "opsm", "threshold": 0.1}]},
    "loglinear": {"proximal": "loglinear"},
    "ess": {"proximal": "current", "lr_rule": "ess"},
    "minimum variance": {"loss": "reinforce", "proximal": "current", "baseline": "minimum_variance"},
}


def test_every_loss_and_every_correction_has_a_form() -> None:
    options = [UpdateSettings.model_validate(form) for form in FORMS.values()]
    assert {each.loss.name for each in options} == set(names("loss"))
    assert {correction.name for each in options for correction in each.weights} == set(names("correction"))


def ages_of(rows: list[Row]) -> list[IdArray]:
    """Versions between a token's and the step's; they differ along a row."""
    return [np.where(row.mask == 1, np.arange(len(row.ids)) % 4, 0).astype(np.int32) for row in rows]


def step_of(
    rows: list[Row],
    advantages: list[float],
    options: UpdateSettings,
    parts: int = 1,
    dtype: torch.dtype = torch.float32,
) -> tuple[FloatArray, UpdateMetrics]:
    """The gradient and the metrics of a step; the batch comes in parts, if in more than one."""
    policy = make_policy().to(dtype)
    optimizer = make_optimizer(policy, options)
    values: list[float | FloatArray] = list(advantages)
    if parts == 1:
        metrics = policy_update(policy, optimizer, rows, values, options, ages=ages_of(rows))
    else:
        update = GradientAccumulation(policy, optimizer, options)
        rollouts = sorted({row.rollout_id for row in rows})
        for part in np.array_split(rollouts, parts):
            own = [index for index, row in enumerate(rows) if row.rollout_id in part]
            some = [rows[index] for index in own]
            update.add(some, [values[index] for index in own], ages=ages_of(some))
        metrics = update.step()
    grads = [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
    return torch.cat(grads).numpy(), metrics


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_no_form_knows_rows_micro_batches_or_parts(form: str, data: st.DataObject) -> None:
    """Rollouts split into rows with disjoint masks, micro-batches of any size and batches in parts: one
    gradient.
    """
    options = UpdateSettings.model_validate(FORMS[form] | {"lr": 1e-3, "max_grad_norm": 1e9})
    options = options.model_copy(update={"normalisation": data.draw(st.sampled_from(["token", "rollout"]))})
    rows, advantages = make_rows(data.draw(st.integers(0, 99))), [1.0, -0.5, 0.25, 2.0, -1.5]
    expected, whole = step_of(rows, advantages, options, dtype=torch.float64)
    split = [
        part
        for row in rows
        for part in split_row(
            row, data.draw(st.lists(st.booleans(), min_size=len(row.ids), max_size=len(row.ids)))
        )
    ]
    order = data.draw(st.permutations(range(len(split))))
    small = options.model_copy(update={"micro_batch_tokens": data.draw(st.sampled_from([1, 20, 40, 10_000]))})
    values = [advantages[index // 2] for index in order]
    found, metrics = step_of(
        [split[index] for index in order], values, small, data.draw(st.integers(1, 3)), torch.float64
    )
    np.testing.assert_allclose(
        found, expected, rtol=1e-6, atol=1e-7 * max(float(np.abs(expected).max()), 1.0)
    )
    assert metrics.as_dict() == pytest.approx(whole.as_dict(), rel=1e-6, abs=1e-6)


def test_a_rollout_that_needs_two_passes_has_the_gradient_of_one() -> None:
    """Its two rows fit no micro-batch together; the ratio of GSPO is still that of both."""
    options = UpdateSettings(
        loss={"name": "gspo", "clip_low": 1.0, "clip_high": 1e9}, max_grad_norm=1e9, normalisation="rollout"
    )
    row = make_rows(count=1)[0]
    rows = split_row(row, [index % 2 == 0 for index in range(len(row.ids))])
    values = [1.0, 1.0]
    together, _ = step_of(rows, values, options)
    in_pieces, _ = step_of(rows, values, options.model_copy(update={"micro_batch_tokens": len(row.ids)}))
    np.testing.assert_allclose(in_pieces, together, rtol=1e-5, atol=1e-7)
    alone, _ = step_of(rows[:1], values[:1], options)
    assert np.abs(alone - together).max() > 1e-3


def test_masked_tokens_count_in_the_denominator_and_are_told() -> None:
    """A rollout that is masked whole leaves what the others have in a batch where its advantage is 0."""
    rows = make_rows(count=3)
    far = np.where(rows[1].mask == 1, -80.0, 0.0).astype(np.float32)
    batch = [rows[0], replace(rows[1], logprobs=far), rows[2]]
    options = UpdateSettings(
        proximal="current", corrections=[{"name": "mis", "cap": 1e30}], max_grad_norm=1e9
    )
    found, metrics = step_of(batch, [1.0, -1.0, 0.5], options)
    expected, _ = step_of(rows, [1.0, 0.0, 0.5], options)
    np.testing.assert_array_equal(found, expected)
    assert metrics.tokens == sum(int(row.mask.sum()) for row in rows)
    assert metrics.masked == pytest.approx(int(rows[1].mask.sum()) / metrics.tokens)
    assert metrics.clip_fraction == 0.0


def test_the_rate_of_the_ess_rule_is_of_one_step_only() -> None:
    options = UpdateSettings(lr=1e-3, proximal="current", lr_rule="ess")
    policy, rows = make_policy(), make_rows()
    optimizer = make_optimizer(policy, options)
    metrics = policy_update(policy, optimizer, rows, [1.0, -0.5, 0.25, 2.0, -1.5], options)
    assert 1 / 5 <= metrics.rollout_ess < 1
    assert metrics.lr == pytest.approx(1e-3 * math.sqrt(metrics.rollout_ess))
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3]


def test_what_a_proximal_policy_needs_is_asked_for() -> None:
    rows = make_rows(count=2)
    policy = make_policy()
    optimizer = make_optimizer(policy, SETTINGS)
    for proximal, words in (("snapshot", "logprobs of the proximal"), ("loglinear", "ages")):
        options = UpdateSettings.model_validate({"proximal": proximal})
        with pytest.raises(TrainerError, match=words):
            policy_update(policy, optimizer, rows, [1.0, 1.0], options)


def test_the_optimizer_steps_and_is_restored_as_torchs_own():
    def trained(kind):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
        optimizer = kind(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 7)).square().sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        return [*model.parameters()], optimizer.state_dict()

    (own, own_state), (theirs, their_state) = trained(EagerAdamW), trained(torch.optim.AdamW)
    assert all(map(torch.equal, own, theirs))
    assert own_state["param_groups"] == their_state["param_groups"]
    assert not any(weight.requires_grad for row in own_state["state"].values() for weight in row.values())
