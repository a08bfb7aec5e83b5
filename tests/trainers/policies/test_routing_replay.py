"""A mixture of experts computes tokens by the experts that were recorded for them.

What it must give is computed by plain transformers with the choice forced by hand: routers written out here,
which take the experts of each token and weigh them by the family's formula.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harnessgym.errors import PolicyError
from harnessgym.routed_experts import RowExperts
from tests.trainers.peers import peer_and_policy
from tests.trainers.policies.families import Family, model_of, tiny_model
from tests.trainers.policies.test_transformers import TEMPERATURE, assert_close, by_name, of_transformers
from trainers.packing import sharing_keys
from trainers.policies.transformers import TransformersPolicy

EXPERTS = 4
_COMMON = {
    "num_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip
_GROUPED = {
    "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}  # fmt: skip
_LINEAR = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 2), ("key_head_dim", 8), ("value_head_dim", 8))}  # fmt: skip
OTHERS = {
    **dict.fromkeys(
        ("mixtral", "olmoe", "flex_olmo", "qwen2_moe", "granitemoe", "granitemoeshared", "minimax", "minimax_m2", "hunyuan_v1_moe", "ernie4_5_moe"),
        _COMMON,
    ),
    **dict.fromkeys(("glm4_moe", "dots1"), _GROUPED),
    "deepseek_v2": _GROUPED | _LATENT | {"n_group": 2, "topk_method": "group_limited_greedy"},
    "qwen3_next": _COMMON | _LINEAR | {"shared_expert_intermediate_size": 16},
    "lfm2_moe": _COMMON | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "jamba": _COMMON | {"mamba_d_state": 8, "use_mamba_kernels": False},
    "gemma4_text": _COMMON | {"enable_moe_block": True, "top_k_experts": 2},
}  # fmt: skip
MODELS = {
    **{name: lambda name=name: tiny_model(name) for name in ("qwen3_moe", "gpt_oss", "deepseek_v3", "granitemoehybrid")},
    **{kind: lambda kind=kind: model_of(Family(kind, OTHERS[kind])) for kind in OTHERS},
}  # fmt: skip


def softmax_then_gather(logits, chosen, _):
    weights = logits.softmax(-1).gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True)


def sigmoid_then_gather(logits, chosen, config):
    weights = logits.sigmoid().gather(-1, chosen)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * config.routed_scaling_factor


def gather_then_softmax(logits, chosen, _):
    return logits.gather(-1, chosen).softmax(-1)


BY_HAND = {
    "qwen3_moe": ("gate", softmax_then_gather),
    "mixtral": ("gate", softmax_then_gather),
    "deepseek_v3": ("gate", sigmoid_then_gather),
    "gpt_oss": ("router", gather_then_softmax),
}


class RouterByHand(nn.Module):
    """Weighs the experts that it is told to choose."""

    def __init__(self, router, formula, config):
        super().__init__()
        self.weight, self.bias = router.weight, getattr(router, "bias", None)
        self.formula, self.config, self.chosen = formula, config, None

    def forward(self, hidden):
        logits = F.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight, self.bias)
        return logits, self.formula(logits, self.chosen, self.config), self.chosen


def by_hand(name, model, rows, masks, routing):
    """A model whose routers are replaced, and the logprobs that it gives."""
    attribute, formula = BY_HAND[name]
    model = copy.deepcopy(model)
    blocks = [module for module in model.modules() if hasattr(module, "experts")]
    for block in blocks:
        setattr(block, attribute, RouterByHand(getattr(block, attribute), formula, model.config))
    found = []
    for row, mask, routed in zip(rows, masks, routing, strict=True):
        for index, block in enumerate(blocks):
            getattr(block, attribute).chosen = torch.from_numpy(routed.experts[:, index].astype(np.int64))
        found.append(of_transformers(model, [row], [mask]))
    return model, torch.cat(found)


def some_rows(seed=0):
    """Two rows with a common prefix and one without."""
    draw = np.random.default_rng(seed)
    prefix = draw.integers(3, 97, 12)
    rows = [np.concatenate((prefix, draw.integers(3, 97, size))).astype(np.int32) for size in (7, 9)]
    rows.append(draw.integers(3, 97, 11).astype(np.int32))
    return rows, [(np.arange(len(row)) > 1).astype(np.int32) for row in rows]


def drawn(policy, rows, *, shared=12, seed=1):
    """Experts at random for all tokens of some rows, the same for the first `shared` of the first two."""
    draw = np.random.default_rng(seed)
    top_k, layers = policy.routing_replay.top_k, len(policy.routing_replay.routers)
    routing = [
        RowExperts(
            np.stack([[draw.permutation(EXPERTS)[:top_k] for _ in range(layers)] for _ in row]).astype(
                np.uint8
            ),
            np.ones(len(row), np.bool_),
        )
        for row in rows
    ]
    routing[1].experts[:shared] = routing[0].experts[:shared]
    return routing


def own_experts(policy, row):
    """The experts that the policy chooses itself for all tokens of a row but the last."""
    chosen = []
    hooks = [
        router.module.register_forward_hook(lambda _, __, out: chosen.append(out[-1]))
        for router in policy.routing_replay.routers
    ]
    with torch.no_grad():
        policy.logprobs([row], [np.ones(len(row), np.int32) * (np.arange(len(row)) > 0)])
    for hook in hooks:
        hook.remove()
    experts = torch.stack(chosen, dim=1).numpy().astype(np.uint8)
    return RowExperts(experts, np.arange(len(row)) < len(row) - 1)


@pytest.mark.parametrize("name", MODELS)
def test_its_own_experts_change_no_bit(name):
    policy = TransformersPolicy(MODELS[name]())
    rows, masks = some_rows()
    for row, mask in zip(rows, masks, strict=True):
        replayed = policy.logprobs([row], [mask], TEMPERATURE, [own_experts(policy, row)])
        assert torch.equal(replayed, policy.logprobs([row], [mask], TEMPERATURE))


@pytest.mark.parametrize("name", MODELS)
def test_packed_and_padded_rows_give_what_each_row_gives(name):
    policy = TransformersPolicy(MODELS[name]())
    rows, masks = some_rows()
    routing = drawn(policy, rows)
    together = policy.logprobs(rows, masks, TEMPERATURE, routing)
    each = [policy.logprobs([row], [mask], TEMPERATURE, [routed]) for row, mask, routed in zip(rows, masks, routing, strict=True)]  # fmt: skip
    assert torch.allclose(together, torch.cat(each), atol=1e-5)
    assert (together - policy.logprobs(rows, masks, TEMPERATURE)).abs().max() > 0.05
    if not policy.padded_because:
        policy.padded_because = "this is a test"
        policy.model.set_attn_implementation("eager")
        assert torch.allclose(together, policy.logprobs(rows, masks, TEMPERATURE, routing), atol=1e-5)


@pytest.mark.parametrize("name", BY_HAND)
def test_logprobs_and_gradients_are_those_of_experts_forced_by_hand(name):
    model = MODELS[name]()
    policy = TransformersPolicy(copy.deepcopy(model))
    rows, masks = some_rows()
    routing = drawn(policy, rows)
    hand, expected = by_hand(name, model, rows, masks, routing)
    found = policy.logprobs(rows, masks, TEMPERATURE, routing)
    assert torch.allclose(found, expected, atol=1e-5)
    gradients = []
    for each, logprobs in ((policy, found), (hand, expected)):
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        gradients.append(by_name(each, [(name, tensor.grad) for name, tensor in each.named_parameters()]))
    assert_close(*gradients)
    routers = [
        tensor for name, tensor in gradients[0].items() if ".gate.weight" in name or ".router.weight" in name
    ]
    assert routers
    assert all(tensor.norm() > 1e-3 for tensor in routers)


@pytest.mark.parametrize("name", ["qwen3_moe", "granitemoehybrid"])
def test_recomputed_activations_are_computed_by_the_same_experts(name):
    """Also if another pass with other experts lies between the forward pass and the backward pass."""
    found = []
    rows, masks = some_rows()
    for checkpointing in (False, True):
        policy = TransformersPolicy(MODELS[name]())
        routing = drawn(policy, rows)
        if checkpointing:
            policy.recompute_activations()
        logprobs = policy.logprobs(rows, masks, TEMPERATURE, routing)
        policy.logprobs(rows, masks, TEMPERATURE, drawn(policy, rows, seed=2))
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        found.append({name: tensor.grad for name, tensor in policy.named_parameters()})
    assert_close(*found)


def test_a_prefix_is_shared_only_as_far_as_its_experts_are_equal():
    policy = TransformersPolicy(MODELS["qwen3_moe"]())
    rows, masks = some_rows()
    sizes = []
    for shared in (12, 9, 0):
        routing = drawn(policy, rows, shared=shared)
        sizes.append(policy.pass_size(sharing_keys(rows, routing)))
        together = policy.logprobs(rows, masks, TEMPERATURE, routing)
        each = [policy.logprobs([row], [mask], TEMPERATURE, [routed]) for row, mask, routed in zip(rows, masks, routing, strict=True)]  # fmt: skip
        assert torch.allclose(together, torch.cat(each), atol=1e-5)
    whole = sum(map(len, rows))
    assert sizes == [whole - 12, whole - 9, whole]
    assert policy.pass_size(sharing_keys(rows, None)) == whole - 12


def test_tokens_without_recorded_experts_choose_their_own():
    policy = TransformersPolicy(MODELS["qwen3_moe"]())
    rows, masks = some_rows()
    nothing = [RowExperts(routed.experts, np.zeros_like(routed.recorded)) for routed in drawn(policy, rows)]
    plain = policy.logprobs(rows, masks, TEMPERATURE)
    assert torch.equal(policy.logprobs(rows, masks, TEMPERATURE, nothing), plain)
    assert torch.equal(policy.logprobs(rows, masks, TEMPERATURE, [None] * 3), plain)
    half = drawn(policy, rows)
    for routed, row in zip(half, rows, strict=True):
        own = own_experts(policy, row)
        routed.recorded[6:] = False
        routed.experts[:6] = own.experts[:6]
    assert torch.allclose(policy.logprobs(rows, masks, TEMPERATURE, half), plain, atol=1e-5)
    mixed = policy.logprobs(rows, masks, TEMPERATURE, [half[0], None, None])
    assert torch.allclose(mixed, plain, atol=1e-5)


def test_engines_may_report_all_layers_or_one_flat_list():
    policy = TransformersPolicy(MODELS["deepseek_v3"]())
    rows, masks = some_rows()
    routing = drawn(policy, rows)
    expected = policy.logprobs(rows, masks, TEMPERATURE, routing)
    for rearranged in (
        lambda experts: np.concatenate(
            (np.zeros_like(experts), experts), axis=1
        ),  # its first layer has no experts
        lambda experts: experts.reshape(len(experts), 1, -1),
        lambda experts: np.concatenate((np.zeros_like(experts), experts), axis=1).reshape(
            len(experts), 1, -1
        ),
        lambda experts: experts.astype(np.uint16),
    ):
        other = [RowExperts(rearranged(routed.experts), routed.recorded) for routed in routing]
        assert torch.equal(policy.logprobs(rows, masks, TEMPERATURE, other), expected)


def test_experts_of_another_model_are_refused():
    policy = TransformersPolicy(MODELS["qwen3_moe"]())
    (row, *_), (mask, *_) = some_rows()
    (routed, *_) = drawn(policy, [row, row])

    def refused(experts, reason):
        with pytest.raises(PolicyError, match=reason):
            policy.logprobs([row], [mask], 1.0, [RowExperts(experts, routed.recorded)])

    refused(routed.experts + EXPERTS, "the model has 4 experts")
    refused(routed.experts[:, :1], r"\[1, 2\] routed experts; the model has 2 layers, of which 2 choose 2")
    refused(routed.experts[:, :, :1], r"\[2, 1\] routed experts")
    assert torch.isfinite(policy.logprobs([row], [mask])).all()  # nothing of it is left


@pytest.mark.parametrize("transformers", [True, False])
def test_a_policy_without_experts_refuses_them(transformers):
    policy = TransformersPolicy(tiny_model("qwen3")) if transformers else peer_and_policy("qwen3")[1]
    (row, *_), (mask, *_) = some_rows()
    routed = RowExperts(np.zeros((len(row), 2, 2), np.uint8), np.ones(len(row), np.bool_))
    with pytest.raises(PolicyError, match="no experts"):
        policy.logprobs([row], [mask], 1.0, [routed])


def test_a_router_that_does_not_take_the_best_is_refused():
    """phimoe takes the best one twice, with other masks."""
    policy = TransformersPolicy(model_of(Family("phimoe", _COMMON)))
    (row, *_), (mask, *_) = some_rows()
    with pytest.raises(PolicyError, match=r'cannot be replayed: .* Set trainer\.routing_replay = "off"'):
        policy.logprobs([row], [mask], 1.0, drawn(policy, [row, row])[:1])


def test_a_trunk_chooses_its_own_experts():
    policy = TransformersPolicy(MODELS["qwen3_moe"]())
    rows, masks = some_rows()
    trunk = policy.trunk()
    plain = policy.hidden(rows, masks)[0]
    assert torch.equal(trunk.hidden(rows, masks)[0], plain)
    routing = drawn(policy, rows)
    assert torch.equal(trunk.hidden(rows, masks, routing)[0], policy.hidden(rows, masks, routing)[0])
