"""What the policy computes, publishes and trains is what transformers does, family by family."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM, Qwen2ForCausalLM

from harnessgym.errors import PolicyError
from harnessgym.run_config.trainer import LoraSection
from tests.trainers.policies.families import FAMILIES, tiny_model
from trainers.lora import adapt
from trainers.policies.loading import load_policy
from trainers.policies.model_head import body_of
from trainers.policies.native import NativePolicy
from trainers.policies.transformers import TransformersPolicy, load_transformers
from trainers.policy import token_logprobs
from trainers.value_function import Critic
from trainers.weights.export import write_model

TEMPERATURE = 0.8
PACKED = [name for name, family in FAMILIES.items() if family.packed and name != "phi3_longrope"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A family's name, its tiny model, and a folder with it."""
    model = tiny_model(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return request.param, model, folder


def some_rows(seed=3):
    """Rows of a shared prompt, longer than any window here, and one of another."""
    draw = np.random.default_rng(seed)
    prompt = draw.integers(3, 97, 20)
    rows = [np.concatenate((prompt, draw.integers(3, 97, size))).astype(np.int32) for size in (9, 17, 4)]
    rows.append(draw.integers(3, 97, 13).astype(np.int32))
    masks = [((np.arange(len(row)) > 0) & (np.arange(len(row)) % 3 != 1)).astype(np.int32) for row in rows]
    return rows, masks


def of_transformers(model, rows, masks):
    """Log-probabilities of the chosen tokens, row by row, as plain transformers computes them."""
    found = []
    for row, mask in zip(rows, masks, strict=True):
        ids = torch.from_numpy(row[None]).long()
        found.append(token_logprobs(model(ids).logits, ids, TEMPERATURE)[0, torch.from_numpy(mask) != 0])
    return torch.cat(found)


def by_name(model, tensors):
    """Tensors under their names in the model of transformers."""
    prefix = "model." if isinstance(model, TransformersPolicy) else ""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors}


def gradients(model, logprobs):
    """Gradients of a weighted sum of log-probabilities, by parameter."""
    model.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return by_name(model, [(name, each.grad.clone()) for name, each in model.named_parameters()])


def assert_close(found, expected):
    """Gradients by parameter are equal up to rounding."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).norm() <= 1e-4 * tensor.norm() + 1e-6, name


def test_log_probabilities_and_gradients_are_those_of_plain_transformers(family):
    name, model, folder = family
    policy = load_transformers(folder)
    assert (not policy.padded_because) == FAMILIES[name].packed, policy.padded_because
    rows, masks = some_rows()
    found, expected = policy.logprobs(rows, masks, TEMPERATURE), of_transformers(model, rows, masks)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() <= 1e-5
    assert expected.std() > 0.3  # in a model that is sure of nothing no mistake would show
    assert_close(gradients(policy, found), gradients(model, expected))


def test_a_version_is_the_checkpoint_that_transformers_reads_bit_for_bit(family, tmp_path):
    _, _, folder = family
    policy = load_transformers(folder)
    published, stored = policy.published(), load_file(folder / "model.safetensors")
    assert published.keys() == stored.keys()
    assert all(torch.equal(published[name], tensor) for name, tensor in stored.items())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    write_model(folder, policy.published(), tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    state = by_name(policy, policy.state_dict().items())
    assert all(torch.equal(state[name], tensor) for name, tensor in again.state_dict().items())
    other = load_transformers(folder)
    other.load(policy.published())
    assert all(torch.equal(policy.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


def test_computing_activations_again_changes_no_gradient(family):
    _, _, folder = family
    rows, masks = some_rows()
    kept, computed_again = (
        load_policy(folder, "transformers"),
        load_policy(folder, "transformers", checkpointing=True),
    )
    passes = []
    next(computed_again.blocks[0].children()).register_forward_pre_hook(lambda *_: passes.append(1))
    found = [gradients(policy, policy.logprobs(rows, masks)) for policy in (kept, computed_again)]
    assert len(passes) >= 2
    assert_close(*found)
    assert not any(module.training for block in computed_again.blocks for module in block.children())


def test_new_adapters_change_nothing_and_trained_ones_are_merged(family, tmp_path):
    _, _, folder = family
    policy = load_transformers(folder)
    rows, masks = some_rows()
    before, published = policy.logprobs(rows, masks).detach(), policy.published()
    adapt(policy, LoraSection(rank=2, alpha=4.0), seed=1)
    assert all(torch.equal(published[name], tensor) for name, tensor in policy.published().items())
    assert torch.equal(policy.logprobs(rows, masks).detach(), before)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    assert sum(each.numel() for each in trained) < sum(each.numel() for each in policy.parameters()) / 2
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_model(folder, policy.published(), tmp_path)
    merged = load_transformers(tmp_path).logprobs(rows, masks)
    assert (merged - before).abs().max() > 1e-3
    assert (policy.logprobs(rows, masks) - merged).abs().max() <= 1e-4


def test_a_critic_begins_at_nothing_and_learns_from_the_last_hidden_states(family):
    _, model, folder = family
    policy = load_transformers(folder)
    critic = Critic(policy)
    rows, masks = some_rows()
    assert not critic.values(rows, masks).any()
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.in_features)[None])
        hidden = body_of(model)(torch.from_numpy(rows[0][None]).long()).last_hidden_state[0]
    expected = (hidden @ critic.head.weight[0])[np.flatnonzero(masks[0]) - 1]
    assert torch.allclose(critic.values(rows[:1], masks[:1]), expected, atol=1e-4)
    critic.values(rows, masks).sum().backward()
    assert all(
        parameter.grad is not None for name, parameter in critic.named_parameters() if "embed" not in name
    )
    assert not any(parameter.grad is not None for parameter in policy.parameters())
    before = {name: tensor.clone() for name, tensor in critic.state_dict().items()}
    critic.load_state_dict(copy.deepcopy(before))


@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_equal_padded_ones(name, tmp_path):
    tiny_model(name).save_pretrained(tmp_path)
    packed, padded = load_transformers(tmp_path), load_transformers(tmp_path)
    padded.padded_because = "the test says so"
    padded.model.set_attn_implementation("eager")
    rows, masks = some_rows()
    assert packed.pass_size(rows) < sum(map(len, rows)) < padded.pass_size(rows)
    found = [policy.logprobs(rows, masks, TEMPERATURE) for policy in (packed, padded)]
    assert (found[0] - found[1]).abs().max() <= 1e-5
    assert_close(*(gradients(policy, each) for policy, each in zip((packed, padded), found, strict=True)))


def test_products_in_bfloat16_are_near_those_in_float32(tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path)
    policy = load_transformers(tmp_path)
    rows, masks = some_rows()
    exact = policy.logprobs(rows, masks)
    policy.products = torch.bfloat16
    rounded = policy.logprobs(rows, masks)
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().max() < 0.5


def test_many_logits_are_computed_in_parts_that_change_nothing(tmp_path, monkeypatch):
    tiny_model("gemma2").save_pretrained(tmp_path)
    policy = load_transformers(tmp_path)
    rows, masks = some_rows()
    whole = policy.logprobs(rows, masks)
    expected = gradients(policy, whole)
    monkeypatch.setattr("trainers.policy._LOGITS", 97 * 8)
    parts = policy.logprobs(rows, masks)
    assert torch.allclose(parts, whole, atol=1e-6)
    assert_close(gradients(policy, parts), expected)


def test_attention_of_its_own_kind_is_found_out_and_rows_are_padded(tmp_path):
    """A model that looks at its neighbours in the sequence itself: packed rows would be wrong."""
    model = tiny_model("qwen2")
    model.save_pretrained(tmp_path)

    def mixing(module, arguments, output):
        return output + output.roll(1, dims=1)

    policy = load_transformers(tmp_path)
    assert not policy.padded_because
    policy.model.set_attn_implementation("sdpa")
    policy.model.model.layers[0].mlp.register_forward_hook(mixing)
    found = TransformersPolicy(policy.model)
    assert "packed rows differ" in found.padded_because
    assert found.model.config._attn_implementation == "sdpa"


def test_a_window_that_layers_do_not_name_is_not_trusted(tmp_path):
    model = tiny_model("qwen2")
    model.config.sliding_window = 4096
    model.config.use_sliding_window = True
    assert "how far they see" in TransformersPolicy(model).padded_because


def test_the_native_policy_is_chosen_where_it_computes_the_architecture(tmp_path):
    tiny_model("qwen3").save_pretrained(tmp_path / "qwen3")
    tiny_model("qwen2").save_pretrained(tmp_path / "qwen2")
    assert isinstance(load_policy(tmp_path / "qwen3"), NativePolicy)
    assert isinstance(load_policy(tmp_path / "qwen2"), TransformersPolicy)
    assert isinstance(load_policy(tmp_path / "qwen3", "transformers"), TransformersPolicy)
    with pytest.raises(PolicyError, match="not supported"):
        load_policy(tmp_path / "qwen2", "native")


def damaged(folder, damage):
    weights = load_file(folder / "model.safetensors")
    if damage == "missing":
        del weights["model.layers.1.self_attn.q_proj.bias"]
    elif damage == "misshaped":
        weights["model.norm.weight"] = torch.zeros(3)
    else:
        weights["model.extra.weight"] = torch.zeros(3)
    return weights


@pytest.mark.parametrize(
    ("damage", "match"), [("missing", "q_proj.bias"), ("misshaped", "norm.weight"), ("more", "extra")]
)
def test_weights_that_do_not_fit_are_refused_by_name(damage, match, tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path)
    policy = load_transformers(tmp_path)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with pytest.raises(PolicyError, match=match):
        policy.load(damaged(tmp_path, damage))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    write_model(tmp_path, damaged(tmp_path, damage), tmp_path / "damaged")
    if damage == "more":
        load_transformers(tmp_path / "damaged")
    else:
        with pytest.raises(PolicyError, match=match):
            load_transformers(tmp_path / "damaged")


@pytest.mark.parametrize("broken", ["no weights", "no such architecture", "no JSON"])
def test_a_folder_that_cannot_be_loaded_is_refused(broken, tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    if broken == "no weights":
        (tmp_path / "model.safetensors").unlink()
    elif broken == "no such architecture":
        (tmp_path / "config.json").write_text(json.dumps(raw | {"model_type": "unheard_of"}))
    else:
        (tmp_path / "config.json").write_text("{")
    with pytest.raises(PolicyError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_targets_that_the_model_lacks_are_refused(tmp_path):
    tiny_model("phi3").save_pretrained(tmp_path)
    from harnessgym.errors import TrainerError

    with pytest.raises(TrainerError, match="qkv_proj"):
        adapt(load_transformers(tmp_path), LoraSection(rank=2, targets=("q_proj",)), seed=1)


def test_layers_with_a_dropout_of_their_own_drop_nothing_when_they_recompute_activations(tmp_path):
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "max_position_embeddings": 64}
    config = OPTConfig(vocab_size=97, num_hidden_layers=2, num_attention_heads=2, dropout=0.5, **sizes)
    OPTForCausalLM(config).save_pretrained(tmp_path)
    rows, masks = some_rows()
    policies = [load_policy(tmp_path, "transformers", checkpointing=each) for each in (False, True)]
    assert_close(*(gradients(policy, policy.logprobs(rows, masks)) for policy in policies))


class _Biased(Qwen2ForCausalLM):
    """A model that adds to its logits what does not follow from its last hidden states."""

    def forward(self, input_ids=None, **others):
        out = super().forward(input_ids, **others)
        if input_ids is not None:
            out.logits = out.logits + input_ids[..., None]
        return out


class _Bound(Qwen2ForCausalLM):
    """A model that computes nothing without token ids."""

    def forward(self, input_ids=None, **others):
        return super().forward(input_ids[:], **others)


def test_a_model_whose_logits_do_not_follow_from_its_hidden_states_is_refused():
    with pytest.raises(PolicyError, match=r"_Biased do not follow from .* differ by"):
        TransformersPolicy(_Biased(tiny_model("qwen2").config))


def test_a_model_that_cannot_be_given_hidden_states_is_computed_with_its_output_embeddings():
    model = _Bound(tiny_model("qwen2").config)
    rows, masks = some_rows()
    expected = of_transformers(model, rows, masks)
    found = TransformersPolicy(model).logprobs(rows, masks, TEMPERATURE)
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", PACKED)
def test_flex_attention_computes_what_products_of_spans_do(name, tmp_path):
    tiny_model(name).save_pretrained(tmp_path)
    rows, masks = some_rows()
    sdpa, flex = (load_transformers(tmp_path, attention=each) for each in ("sdpa", "flex"))
    assert flex.model.config._attn_implementation == "harnessgym_flex"
    with torch.no_grad():  # torch computes its gradients on GPUs only
        one, other = (policy.logprobs(rows, masks, TEMPERATURE) for policy in (sdpa, flex))
    assert (one - other).abs().max() <= 1e-5
