"""Adapters: what they train, what is published of them, and which checkpoints they go on from."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.tuners.lora import Linear as PeftLinear

from harnessgym.errors import TrainerError
from harnessgym.run_config.trainer import PROJECTIONS, LoraSection
from tests.trainers.peers import peer_and_policy
from tests.trainers.test_packing import forests
from tests.trainers.test_update import SETTINGS, make_policy, make_rows
from trainers.lora import adapt
from trainers.optimizer import make_optimizer
from trainers.policies.native import NativePolicy
from trainers.policy import token_logprobs
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings

ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.5]
TARGETS = st.sets(st.sampled_from(PROJECTIONS), min_size=1).map(tuple)


def adapted(policy=None, seed=0, **options):
    """A policy with adapters that do not change it yet."""
    policy = policy or make_policy()
    adapt(policy, LoraSection(**{"rank": 3, "alpha": 5.0} | options), seed)
    return policy


def stirred(policy, seed=1):
    """The same, with adapters that do change it."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return policy


def split(policy):
    """Copies of the adapters, and of everything else."""
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    own = {name: tensor for name, tensor in state.items() if ".lora_" in name}
    return own, {name: tensor for name, tensor in state.items() if name not in own}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def logprobs(policy, rows):
    return policy.logprobs(rows, [np.arange(len(row)) > 0 for row in rows])


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize(
    "targets", ["all-linear", ("q_proj", "v_proj"), ("up_proj",), ("o_proj", "down_proj")], ids=str
)
def test_new_adapters_change_nothing_and_are_published_as_the_weights_they_stand_on(family, targets):
    _, policy = peer_and_policy(family, tie_word_embeddings=family == "qwen3")
    before, rows = policy.published(), [np.arange(20, dtype=np.int32)]
    expected = logprobs(policy, rows)
    adapted(policy, targets=targets)
    assert torch.allclose(logprobs(policy, rows), expected, atol=1e-6)
    assert equal(policy.published(), before)
    layers = {name.split(".")[-4] for name in split(policy)[0]}
    assert layers == set(PROJECTIONS if targets == "all-linear" else targets)


@pytest.mark.parametrize("update", [{}, {"baseline": "minimum_variance", "loss": "reinforce"}], ids=str)
def test_a_step_changes_adapters_alone(update):
    policy = adapted()
    optimizer = make_optimizer(policy, SETTINGS)
    adapters, base = split(policy)
    for number in range(2):
        advantages = [1.0, 0.0, 1.0, 0.0, 1.0] if update else ADVANTAGES
        policy_update(
            policy, optimizer, make_rows(number), advantages, UpdateSettings(**SETTINGS.model_dump() | update)
        )
    after, base_after = split(policy)
    assert equal(base, base_after)
    assert not any(torch.equal(after[name], tensor) for name, tensor in adapters.items())
    frozen = [parameter for name, parameter in policy.named_parameters() if ".lora_" not in name]
    assert all(parameter.grad is None for parameter in frozen)
    held = sum(values["exp_avg"].numel() for values in optimizer.state.values())
    assert held == sum(tensor.numel() for tensor in adapters.values())


@settings(max_examples=25, deadline=None)
@given(
    rank=st.integers(1, 9),
    alpha=st.floats(0.5, 64),
    targets=TARGETS,
    seed=st.integers(0, 9),
    family=st.sampled_from(["qwen3", "llama"]),
)
def test_gradients_are_those_of_the_whole_weights_projected(rank, alpha, targets, seed, family):
    """dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, with dL/dW of a policy that has the merged weights and
    no adapters.
    """
    _, policy = peer_and_policy(family, tie_word_embeddings=True)
    stirred(adapted(policy, rank=rank, alpha=alpha, targets=targets), seed).double()
    whole = NativePolicy(policy.config).double()
    whole.load(policy.published())
    rows = [row.ids for row in make_rows(seed)]
    found = []
    for each in (policy, whole):
        result = logprobs(each, rows)
        (result * torch.linspace(-1, 1, len(result))).sum().backward()
        found.append(result.detach())
    assert torch.allclose(*found, atol=1e-6)
    gradients = whole.published({name: parameter.grad for name, parameter in whole.named_parameters()})
    modules = {name: module for name, module in policy.named_modules() if isinstance(module, PeftLinear)}
    assert len(modules) == len(targets) * policy.config.num_hidden_layers
    for name, module in modules.items():
        number, kind = name.split(".")[1], name.split(".")[-1]
        part = "self_attn" if kind in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
        dW = gradients[f"model.layers.{number}.{part}.{kind}.weight"]
        A, B = module.lora_A["default"].weight, module.lora_B["default"].weight
        scale = alpha / rank
        assert torch.allclose(
            B.grad, scale * dW @ A.detach().T, rtol=1e-4, atol=1e-6 * float(scale * dW.abs().max())
        )
        assert torch.allclose(
            A.grad, scale * B.detach().T @ dW, rtol=1e-4, atol=1e-6 * float(scale * dW.abs().max())
        )


@settings(max_examples=15, deadline=None)
@given(rank=st.integers(1, 9), alpha=st.floats(0.5, 64), targets=TARGETS, seed=st.integers(0, 99))
def test_what_is_published_is_what_peft_merges_and_merging_leaves_the_base_alone(rank, alpha, targets, seed):
    policy = stirred(adapted(rank=rank, alpha=alpha, targets=targets), seed)
    before = split(policy)
    published = policy.published()
    assert equal(policy.published(), published)
    assert all(map(equal, split(policy), before))
    theirs = copy.deepcopy(policy)
    for module in theirs.modules():
        if isinstance(module, PeftLinear):
            module.merge()
    bases = {name: tensor for name, tensor in theirs.state_dict().items() if ".lora_" not in name}
    assert bases.keys() == before[1].keys()
    theirs.lora = None
    assert equal(theirs.published(bases), published)
    changed = [
        name for name, tensor in make_policy().published().items() if not torch.equal(tensor, published[name])
    ]
    assert {name.split(".")[-2] for name in changed} == set(targets)


@settings(max_examples=25, deadline=None)
@given(rows=forests(), seed=st.integers(0, 9))
def test_packed_rows_give_what_whole_rows_give(rows, seed):
    _, policy = peer_and_policy("qwen3")
    stirred(adapted(policy), seed).double()  # in float32 the order of a sum alone breaks any useful bound
    ours = logprobs(policy, rows)
    whole = [
        token_logprobs(policy(torch.from_numpy(row[None]).long()), torch.from_numpy(row[None]).long())[0, 1:]
        for row in rows
    ]
    assert torch.allclose(ours, torch.cat(whole), atol=1e-9)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if len(ours):
        weights = torch.linspace(-1, 1, len(ours))
        gradients = [
            torch.autograd.grad((weights * found).sum(), trained) for found in (ours, torch.cat(whole))
        ]
        assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(*gradients, strict=True))


def test_a_policy_that_is_given_whole_weights_is_these_whatever_its_adapters_were():
    policy, other = stirred(adapted()), make_policy()
    with torch.no_grad():
        other.embed_tokens.weight.mul_(1.5)
    policy.load(other.published())
    assert equal(policy.published(), other.published())
    rows = [np.arange(10, dtype=np.int32)]
    assert torch.allclose(logprobs(policy, rows), logprobs(other, rows), atol=1e-6)


def test_adapters_are_drawn_from_the_seed_alone_and_no_generator_advances():
    torch.manual_seed(3)
    expected = torch.rand(4)
    first, _ = split(adapted(seed=1))
    policies = [make_policy(), make_policy()]
    torch.manual_seed(3)
    second, _ = split(adapted(policies[0], seed=1))
    assert torch.equal(torch.rand(4), expected)
    assert equal(first, second)
    other, _ = split(adapted(policies[1], seed=2))
    assert not equal(first, other)


def test_a_checkpoint_holds_the_adapters_alone_as_copies():
    policy = stirred(adapted())
    state = policy.lora.state(policy.state_dict())
    adapters, _ = split(policy)
    stirred(policy, 2)
    assert equal(policy.lora.tensors_of(state), adapters)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 4}, "rank was 3 and is 4"),
        ({"alpha": 6.0}, r"alpha was 5\.0 and is 6\.0"),
        ({"targets": ("q_proj",)}, r"targets was \['q_proj', .* and is \['q_proj'\]"),
    ],
)
def test_adapters_of_other_settings_are_refused(options, words):
    policy = adapted()
    with pytest.raises(TrainerError, match=words):
        adapted(**options).lora.tensors_of(policy.lora.state(policy.state_dict()))


def test_adapters_of_another_base_are_refused_and_of_this_one_taken():
    policy, other = adapted(), make_policy()
    state = policy.lora.state(policy.state_dict())
    assert equal(adapted().lora.tensors_of(state), split(policy)[0])
    with torch.no_grad():
        other.norm[0] += 1e-6
    with pytest.raises(TrainerError, match="have other base weights"):
        adapted(other).lora.tensors_of(state)
    with pytest.raises(TrainerError, match="none to resume from"):
        policy.lora.tensors_of(None)
