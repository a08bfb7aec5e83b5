import pytest
import torch
from transformers import DynamicCache

from tests.trainers.engine.test_runner import prompts
from tests.trainers.policies.families import tiny_model
from trainers.engine.runners.cache_layers import copied, croppable_length, cropped, joined, selected

FAMILIES = ["qwen2", "mistral", "gemma3", "deepseek_v3", "qwen3_5", "granitemoehybrid"]
LENGTHS = (5, 11, 3)


@pytest.fixture(params=FAMILIES)
def model(request):
    return tiny_model(request.param)


@torch.no_grad()
def cache_of(model, ids):
    cache = DynamicCache(config=model.config)
    model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
    return cache


def tensors(cache):
    """All tensors of a cache by name, and its lengths."""
    found = {}
    for depth, layer in enumerate(cache.layers):
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                found |= {f"{depth}.{name}.{key}": each for key, each in value.items()}
            elif name != "_sliding_window_tensor":
                found[f"{depth}.{name}"] = value
    return found


def assert_equal(cache, other):
    expected = tensors(other)
    for name, value in tensors(cache).items():
        same = (
            torch.equal(value, expected[name]) if isinstance(value, torch.Tensor) else value == expected[name]
        )
        assert same, name


def test_rows_that_were_joined_are_selected_as_they_were(model):
    rows = prompts(*LENGTHS)
    caches = [cache_of(model, ids) for ids in rows]
    together = joined(list(zip(caches, LENGTHS, strict=True)))
    for number, (cache, length) in enumerate(zip(caches, LENGTHS, strict=True)):
        assert_equal(selected(together, [number], length), cache)
    pair = joined([(caches[0], 5), (caches[2], 3)])
    assert_equal(selected(together, [0, 2], 5), pair)
    again = joined([(pair, 5), (caches[1], 11)])
    assert_equal(selected(again, [0, 2, 1], 11), together)


@torch.no_grad()
def test_a_copy_goes_its_own_way(model):
    cache = cache_of(model, prompts(9)[0])
    kept = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in tensors(cache).items()
    }
    model(torch.tensor([[4, 5]]), past_key_values=copied(cache), use_cache=True)
    for name, value in tensors(cache).items():
        assert torch.equal(value, kept[name]) if isinstance(value, torch.Tensor) else value == kept[name]


def test_a_cropped_cache_is_that_of_fewer_tokens(model):
    most = croppable_length(DynamicCache(config=model.config))
    assert most in (0, 5, 7, float("inf"))
    if most:
        ids = prompts(min(20, int(most) - 1) if most < 20 else 20)[0]
        shorter, expected = cropped(cache_of(model, ids), 3), cache_of(model, ids[:3])
        for name, value in tensors(shorter).items():
            other = tensors(expected)[name]
            close = (
                torch.allclose(value, other, atol=1e-5) if isinstance(value, torch.Tensor) else value == other
            )
            assert close, name
