"""Copies, crops, joins and selects rows of transformers' caches.

Keys and values are never changed in place, because transformers replaces them with longer tensors: copies
share them. States of linear attention are changed in place, and are copied.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

_ATTENTION = frozenset({DynamicLayer, DynamicSlidingWindowLayer, DummyLayer})
_KNOWN = _ATTENTION | {
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
}


def unknown_layers(cache: Cache) -> set[str]:
    """Kinds of layers of which nothing is known here but that they can be copied."""
    return {type(layer).__name__ for layer in cache.layers if type(layer) not in _KNOWN}


def croppable_length(cache: Cache) -> float:
    """Length that a sequence must not reach if its cache is to be cropped: then a layer drops tokens. 0 if a
    layer has a state.
    """
    if any(type(layer) not in _ATTENTION for layer in cache.layers):
        return 0
    windows = [layer.sliding_window for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
    return min(windows, default=float("inf"))


def has_keys(cache: Cache) -> bool:
    """Whether a layer attends to earlier tokens, so that a joined cache is padded."""
    return any(_has_keys(layer) for layer in cache.layers)


def copied(cache: Cache) -> Cache:
    """A cache that goes its own way."""
    return _with_layers(cache, [_copied(layer) for layer in cache.layers])


def cropped(cache: Cache, length: int) -> Cache:
    """The first `length` tokens of a cache that is shorter than its `croppable_length`."""

    def crop(layer: Any) -> Any:
        own = copy.copy(layer)
        if _has_keys(layer):
            own.keys = layer.keys[..., :length, :]
            own.values = layer.values[..., :length, :]
            _set_length(own, length)
        return own

    return _with_layers(cache, [crop(layer) for layer in cache.layers])


def joined(parts: Sequence[tuple[Cache, int]]) -> Cache:
    """One cache of all sequences of caches of known layers, each given with its length. Shorter ones are
    padded at the beginning.
    """
    length = max(own for _, own in parts)

    def join(*layers: Any) -> Any:
        own = copy.copy(layers[0])
        for name, value in vars(layers[0]).items():
            if isinstance(value, dict):
                by_part = [getattr(layer, name) for layer in layers]
                setattr(own, name, {key: _joined_states([each[key] for each in by_part]) for key in value})
        if _has_keys(own):
            own.keys = _padded([layer.keys for layer in layers])
            own.values = _padded([layer.values for layer in layers])
            _set_length(own, length)
        return own

    first = parts[0][0]
    layers = zip(*(cache.layers for cache, _ in parts), strict=True)
    return _with_layers(first, [join(*each) for each in layers])


def selected(cache: Cache, rows: Sequence[int], length: int) -> Cache:
    """Some sequences of a joined cache, copied; the longest of them has `length` tokens."""

    def select(layer: Any) -> Any:
        own = _with_states(layer, lambda state: state[list(rows)])
        if _has_keys(layer):
            index = torch.tensor(rows, device=layer.keys.device)
            kept = min(length, layer.keys.shape[-2])
            own.keys = layer.keys[..., -kept:, :].index_select(0, index)
            own.values = layer.values[..., -kept:, :].index_select(0, index)
            _set_length(own, length)
        return own

    return _with_layers(cache, [select(layer) for layer in cache.layers])


def _with_layers(cache: Cache, layers: list[Any]) -> Cache:
    own = copy.copy(cache)
    own.layers = layers
    return own


def _copied(layer: Any) -> Any:
    if type(layer) not in _KNOWN:
        return copy.deepcopy(layer)
    return _with_states(layer, torch.clone)


def _with_states(layer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of the layer with changed states. A layer keeps all that concerns its states in dictionaries."""
    own = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            changed = {
                key: change(state) if isinstance(state, Tensor) else state for key, state in value.items()
            }
            setattr(own, name, changed)
    return own


def _joined_states(states: list[Any]) -> Any:
    return torch.cat(states) if isinstance(states[0], Tensor) else states[0]


def _padded(tensors: list[Tensor]) -> Tensor:
    """Keys or values [B, heads, T, D], padded at the beginning to the longest T."""
    longest = max(tensor.shape[-2] for tensor in tensors)
    return torch.cat([F.pad(tensor, (0, 0, longest - tensor.shape[-2], 0)) for tensor in tensors])


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer) and bool(layer.is_initialized)


def _set_length(layer: Any, length: int) -> None:
    if isinstance(layer, DynamicSlidingWindowLayer):
        layer.cumulative_length = length
