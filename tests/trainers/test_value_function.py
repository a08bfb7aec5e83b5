"""The critic: its loss against loops over tokens, its gradient, its shards, and that it learns what is to
be known.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from tests.trainers.test_update import CONFIG, make_policy, make_rows, split_row
from tests.trainers.together import together
from trainers.policies.native import NativePolicy
from trainers.ppo_settings import CriticSettings
from trainers.update_settings import UpdateSettings
from trainers.value_function import Critic, ValueFunction
from trainers.world import ALONE

UPDATE = UpdateSettings(micro_batch_tokens=30)


def make_function(world=ALONE, head=0.3, update=UPDATE, **options):
    """A critic whose values differ from token to token."""
    found = ValueFunction(
        make_policy(), CriticSettings(**{"lr": 1e-2, "max_grad_norm": 1e9} | options), update, world
    )
    if head and world.size == 1:
        torch.nn.init.normal_(found.critic.head.weight, std=head, generator=torch.Generator().manual_seed(3))
    return found


def numbers_of(rows, seed=0):
    """Targets and old values, float32 [T] per row."""
    random = np.random.default_rng(seed)
    return tuple([random.normal(size=len(row.ids)).astype(np.float32) for row in rows] for _ in range(2))


def gradient_of(function):
    grads = [parameter.grad for parameter in function.critic.parameters()]
    assert all(grad is not None for grad in grads)
    return torch.cat(
        [(grad.full_tensor() if hasattr(grad, "full_tensor") else grad).flatten() for grad in grads]
    ).numpy()


def by_hand(function, rows, targets, old, clip, normalisation="token"):
    """The value loss by loops over whole rows, token by token in float64."""
    critic, total = function.critic, 0.0
    counts = [int(row.mask.sum()) for row in rows]
    for row, count, target_T, old_T in zip(rows, counts, targets, old, strict=True):
        seen = []
        hook = critic.trunk.blocks[-1].register_forward_hook(lambda *given, seen=seen: seen.append(given[2]))
        critic.trunk(torch.tensor(row.ids[None]).long())
        hook.remove()
        norm = critic.trunk.features(seen[0])[0].detach().double()
        values_T = (norm @ critic.head.weight.detach().double().T)[:, 0] + float(critic.head.bias.detach())
        share = 1 / sum(counts) if normalisation == "token" else 1 / len(rows) / count
        for t in range(1, len(row.ids)):
            if row.mask[t]:
                value, target, before = float(values_T[t - 1]), float(target_T[t]), float(old_T[t])
                near = before + min(max(value - before, -clip), clip) if clip else value
                total += share * max((value - target) ** 2, (near - target) ** 2) / 2
    return total


@pytest.mark.parametrize("normalisation", ["token", "rollout"])
@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_the_value_loss_equals_a_loop_over_tokens(normalisation, clip):
    function = make_function(clip=clip, update=UPDATE.model_copy(update={"normalisation": normalisation}))
    rows = make_rows()
    targets, old = numbers_of(rows)
    expected = by_hand(function, rows, targets, old, clip, normalisation)
    found = function.update(rows, targets, old)
    assert found.value_loss == pytest.approx(expected, rel=1e-5)
    assert (found.value_clipped > 0) == (clip > 0)
    assert by_hand(function, rows, targets, old, clip, normalisation) < expected


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_its_gradient_is_the_slope_of_the_loss(clip):
    rows = make_rows(3)
    targets, old = numbers_of(rows, 3)
    function = make_function(clip=clip)
    weights = {name: tensor.clone() for name, tensor in function.critic.state_dict().items()}
    for name in ("trunk.embed_tokens.weight", "trunk.layers.0.down_proj.weight", "head.weight", "head.bias"):
        direction = torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(1))

        def loss(step, name=name, direction=direction):
            function.critic.load_state_dict(weights | {name: weights[name] + step * direction})
            return by_hand(function, rows, targets, old, clip)

        slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
        function.critic.load_state_dict(weights)
        function.update(rows, targets, old)
        found = float((dict(function.critic.named_parameters())[name].grad * direction).sum())
        assert found == pytest.approx(slope, rel=2e-2, abs=1e-4), name


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_split_rows_and_micro_batches_leave_values_and_gradient(data):
    rows = make_rows(data.draw(st.integers(0, 99)))
    targets, old = numbers_of(rows)
    split, split_targets, split_old = [], [], []
    for row, target, before in zip(rows, targets, old, strict=True):
        split += split_row(
            row, data.draw(st.lists(st.booleans(), min_size=len(row.ids), max_size=len(row.ids)))
        )
        split_targets += [target, target]
        split_old += [before, before]
    by = {"normalisation": data.draw(st.sampled_from(["token", "rollout"]))}
    whole = make_function(update=UPDATE.model_copy(update=by))
    parted = make_function(
        update=UPDATE.model_copy(update=by | {"micro_batch_tokens": data.draw(st.sampled_from([1, 20, 999]))})
    )
    for row, expected, one, other in zip(
        rows, whole.values(rows), parted.values(split)[::2], parted.values(split)[1::2], strict=True
    ):
        assert expected.shape == row.ids.shape
        np.testing.assert_allclose(one + other, expected, rtol=1e-4, atol=1e-5)
    one, other = whole.update(rows, targets, old), parted.update(split, split_targets, split_old)
    assert one.value_loss == pytest.approx(other.value_loss, rel=1e-4)
    np.testing.assert_allclose(gradient_of(parted), gradient_of(whole), rtol=1e-3, atol=1e-5)


def test_the_first_values_are_zero_whatever_the_policy():
    assert not any(values.any() for values in make_function(head=0.0).values(make_rows()))


def test_a_critic_without_a_vocabulary_starts_from_a_policy_that_has_one_of_its_own():
    policy = NativePolicy(replace(CONFIG, tie_word_embeddings=False))
    critic = Critic(policy)
    assert torch.equal(critic.trunk.blocks[1].down_proj.weight, policy.blocks[1].down_proj.weight)
    assert critic.trunk.blocks[1].down_proj.weight is not policy.blocks[1].down_proj.weight
    assert not any("lm_head" in name for name in critic.state_dict())


def test_a_critic_learns_a_value_that_is_known():
    """How many of a token's forerunners have an even id is told by attention, not by the token alone."""
    function = make_function(head=0.0, lr=3e-3, clip=0.0)
    rows = make_rows(5, 24)

    def known(row):
        even = np.concatenate([[0], np.cumsum(row.ids % 2 == 0)[:-1]])
        return (even / np.arange(1, len(row.ids) + 1)).astype(np.float32)

    targets = [known(row) for row in rows]
    first, *_, last = [function.update(rows, targets, targets).value_error for _ in range(90)]
    assert first > 0.3
    assert last < 0.12
    unseen = make_rows(77, 24)
    errors = [
        (value - known(row))[row.mask != 0]
        for row, value in zip(unseen, function.values(unseen), strict=True)
    ]
    constants = np.concatenate([known(row)[row.mask != 0] for row in unseen])
    assert np.concatenate(errors).std() < constants.std()


def test_a_gradient_that_is_not_finite_leaves_the_critic_as_it_was():
    function, rows = make_function(), make_rows()
    targets, old = numbers_of(rows)
    targets[0][-1] = np.inf
    before = copy.deepcopy(function.critic.state_dict())
    with pytest.raises(TrainerError, match="not finite"):
        function.update(rows, targets, old)
    assert all(torch.equal(tensor, before[name]) for name, tensor in function.critic.state_dict().items())


def some_steps(world, state=None):
    """Values, metrics, the gradient and the state after steps with few and with many rows, some of them
    without a target.
    """
    function = make_function(world, head=0.0, lr=1e-4)
    function.load(state)
    found = []
    for seed, count in ((1, 7), (2, 1), (3, 2)):
        rows = make_rows(seed, count)
        rows.append(
            replace(rows[0], mask=np.zeros_like(rows[0].mask), logprobs=np.zeros_like(rows[0].logprobs))
        )
        targets, old = numbers_of(rows, seed)
        found.append((function.values(rows), function.update(rows, targets, old), gradient_of(function)))
    return found, function.state()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_processes_makes_the_critic_of_one(tmp_path, size):
    """From a state that one process left, and its own goes into one process."""
    start = make_function(lr=1e-4)
    start.update(make_rows(9), *numbers_of(make_rows(9)))
    state = start.state()
    one, after = some_steps(ALONE, state)
    (_, theirs), *others = found = together(tmp_path, size, some_steps, state)
    assert all(left is None for _, left in others)
    for steps, _ in found:
        for (values, metrics, gradient), (known, expected, slope) in zip(steps, one, strict=True):
            for ours, other in zip(values, known, strict=True):
                np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-4)
            assert metrics.value_loss == pytest.approx(expected.value_loss, rel=1e-3)
            assert np.linalg.norm(gradient - slope) <= 1e-3 * np.linalg.norm(slope)
    assert theirs["optimizer"]["state"][0]["step"] == 4
    for name, tensor in after["weights"].items():
        assert torch.allclose(theirs["weights"][name], tensor, rtol=1e-3, atol=1e-3)
    again = make_function(head=0.0)
    again.load(theirs)
    assert all(
        torch.equal(tensor, theirs["weights"][name]) for name, tensor in again.critic.state_dict().items()
    )


def test_a_state_is_a_copy_and_goes_on_exactly():
    one, other = make_function(head=0.0), make_function(head=0.0)
    rows = make_rows()
    targets, old = numbers_of(rows)
    one.update(rows, targets, old)
    state = one.state()
    one.update(rows, targets, old)
    other.load(state)
    other.update(rows, targets, old)
    assert all(
        torch.equal(tensor, other.critic.state_dict()[name])
        for name, tensor in one.critic.state_dict().items()
    )
