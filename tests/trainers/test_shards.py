"""Two and three real processes on gloo (FSDP2) compute what one computes, and hold what one holds, bit for
bit.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harnessgym.errors import TrainerError
from tests.trainers.test_update import FORMS, SETTINGS, ages_of, make_policy, make_rows, split_row
from tests.trainers.together import together
from trainers.held_weights import HeldWeights
from trainers.optimizer import make_optimizer
from trainers.scoring import mean_logprobs
from trainers.update import GradientAccumulation, policy_update
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE

ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.5, 0.75, -2.0]
pytestmark = pytest.mark.timeout(120)


def sharded(world):
    """The policy of the tests, in shards if there are several processes."""
    from trainers.shards import shard

    policy = make_policy()
    if world.size > 1:
        shard(policy, world)
    return policy


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def options(tokens, normalisation="token", **more):
    return SETTINGS.model_copy(update={"micro_batch_tokens": tokens, "normalisation": normalisation} | more)


def steps_of(world, cases, streamed):
    """Per case: the gradient after clipping, the weights after the step, and the metrics."""
    found = []
    for rows, settings in cases:
        policy, advantages = sharded(world), ADVANTAGES[: len(rows)]
        optimizer = make_optimizer(policy, settings)
        if streamed:
            update = GradientAccumulation(policy, optimizer, settings, world)
            for start in range(0, len(rows), 2):
                update.add(rows[start : start + 2], advantages[start : start + 2])
            metrics = update.step()
        else:
            metrics = policy_update(policy, optimizer, rows, advantages, settings, world=world)
        gradient = torch.cat([whole(parameter.grad).flatten() for parameter in policy.parameters()])
        found.append(
            (gradient, torch.cat([whole(parameter).flatten() for parameter in policy.parameters()]), metrics)
        )
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("streamed", [False, True])
def test_any_number_of_processes_makes_the_step_of_one(tmp_path, size, streamed):
    """Also with fewer rows than processes, parts of unequal length, and rows without a trained token."""
    untrained = make_rows(5, 3)
    untrained[1] = replace(
        untrained[1], mask=np.zeros_like(untrained[1].mask), logprobs=np.zeros_like(untrained[1].logprobs)
    )
    cases = [
        (make_rows(1, 7), options(20, max_grad_norm=1e9)),
        (make_rows(1, 7), options(10_000, proximal="behaviour")),
        (make_rows(2, 1), options(10_000, "rollout")),
        (make_rows(3, 3), options(1, "rollout")),
        (untrained, options(1)),
    ]
    one = steps_of(ALONE, cases, streamed)
    for found in together(tmp_path, size, steps_of, cases, streamed):
        for (gradient, weights, metrics), (expected, expected_weights, known) in zip(found, one, strict=True):
            assert (gradient - expected).norm() <= 1e-5 * expected.norm()
            assert torch.allclose(weights, expected_weights, rtol=1e-4, atol=2e-5)
            assert metrics.as_dict() == pytest.approx(known.as_dict(), rel=1e-5, abs=1e-7)


def of_forms(world, cases):
    """Per case: the gradient and the metrics of a step on rollouts of two rows each."""
    found = []
    for settings in cases:
        rows = [
            part
            for row in make_rows(2)
            for part in split_row(row, [index % 3 == 0 for index in range(len(row.ids))])
        ]
        advantages = [advantage for advantage in ADVANTAGES[:5] for _ in range(2)]
        policy = sharded(world)
        optimizer = make_optimizer(policy, settings)
        metrics = policy_update(
            policy, optimizer, rows, advantages, settings, world=world, ages=ages_of(rows)
        )
        found.append(
            (torch.cat([whole(parameter.grad).flatten() for parameter in policy.parameters()]), metrics)
        )
    return found


def test_forms_of_whole_rollouts_have_the_gradient_of_one_process(tmp_path):
    """Also where a rollout is larger than a micro-batch, so that some processes score more often than
    others.
    """
    names = [
        "gspo",
        "minpro",
        "reinforce, tis of sequences",
        "icepop of sequences",
        "geometric",
        "opsm",
        "loglinear",
        "ess",
    ]
    cases = [
        UpdateSettings.model_validate(FORMS[name] | {"max_grad_norm": 1e9, "micro_batch_tokens": tokens})
        for name in names
        for tokens in (1, 22, 10_000)
    ]
    one = of_forms(ALONE, cases)
    for found in together(tmp_path, 2, of_forms, cases):
        for (gradient, metrics), (expected, known) in zip(found, one, strict=True):
            assert (gradient - expected).norm() <= 1e-5 * expected.norm()
            assert metrics.as_dict() == pytest.approx(known.as_dict(), rel=1e-4, abs=1e-6)


def test_a_baseline_of_rollouts_is_refused_by_several_processes(tmp_path):
    def refused(world):
        with pytest.raises(TrainerError, match="gradient of each rollout"):
            of_forms(world, [UpdateSettings.model_validate(FORMS["minimum variance"])])

    together(tmp_path, 2, refused)


def scattered_and_gathered(world, weights, state, then):
    """What the leader has, cut into shards, stepped if asked for, and put together again."""
    from trainers.shards import gather, scatter

    policy = sharded(world)
    optimizer = make_optimizer(policy, SETTINGS)
    leads = world.rank == 0
    scatter(
        policy,
        optimizer,
        policy.state_dict_of(weights) if leads else {},
        (state if leads else {}) if state else None,
    )
    if then:
        policy_update(policy, optimizer, make_rows(then), ADVANTAGES[:5], SETTINGS, world=world)
    weights, state = gather(policy, optimizer)
    return policy.published(weights), state


def trained(seed):
    """A policy after one step, and its optimizer."""
    policy = make_policy()
    optimizer = make_optimizer(policy, SETTINGS)
    policy_update(policy, optimizer, make_rows(seed), ADVANTAGES[:5], SETTINGS)
    return policy, optimizer


@pytest.mark.parametrize("size", [2, 3])
def test_weights_and_optimizer_go_through_shards_bit_for_bit_into_the_leader_alone(tmp_path, size):
    policy, optimizer = trained(3)
    weights, state = policy.published(), optimizer.state_dict()
    (found, moments), *others = together(tmp_path, size, scattered_and_gathered, weights, state, None)
    assert list(found) == list(weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert moments["state"].keys() == state["state"].keys()
    for index, values in state["state"].items():
        assert all(torch.equal(moments["state"][index][name], value) for name, value in values.items())
    ours, theirs = moments["param_groups"][0], state["param_groups"][0]
    assert ours | {"betas": tuple(ours["betas"])} == theirs
    assert others == [({}, {})] * (size - 1)


def test_what_two_processes_leave_one_goes_on_from(tmp_path):
    (weights, state), _ = together(tmp_path, 2, scattered_and_gathered, make_policy().published(), None, 3)
    policy = make_policy()
    policy.load(weights)
    optimizer = make_optimizer(policy, SETTINGS)
    optimizer.load_state_dict(state)
    expected, its_optimizer = trained(3)
    for each, its in ((policy, optimizer), (expected, its_optimizer)):
        policy_update(each, its, make_rows(4), ADVANTAGES[:5], SETTINGS)
        assert its.state_dict()["state"][0]["step"] == 2
    for name, tensor in expected.state_dict().items():
        assert torch.allclose(policy.state_dict()[name], tensor, rtol=1e-4, atol=2e-5)


def test_an_optimizer_that_has_not_stepped_is_left_so(tmp_path):
    """Asked for its state, the library would take a step of no length, which counts in Adam's corrections."""
    (_, state), _ = together(tmp_path, 2, scattered_and_gathered, make_policy().published(), None, None)
    assert state["state"] == {}


def after_a_look(world):
    """The weights after scoring, and after other weights had their turn."""
    policy = sharded(world)
    mean_logprobs(policy, [row.ids for row in make_rows(1, 2)], [2, 3], SETTINGS)
    other = {name: torch.zeros_like(tensor) for name, tensor in make_policy().published().items()}
    with HeldWeights(policy, world, other).in_place():
        zero = all(not whole(parameter).any() for parameter in policy.parameters())
    return zero, torch.cat([whole(parameter).flatten() for parameter in policy.parameters()])


def test_other_weights_may_have_their_turn_after_a_forward_pass(tmp_path):
    _, expected = after_a_look(ALONE)
    for zero, weights in together(tmp_path, 2, after_a_look):
        assert zero
        assert torch.equal(weights, expected)
