"""A model of transformers in two parts: its body, which makes hidden states, and its head of logits.

Logits can so be made for some tokens only. Which parts a model has is not looked up: they are tried against
the whole model.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harnessgym.errors import PolicyError

Head = Callable[[Tensor], Tensor]
"""Makes logits [M, vocabulary] of hidden states [M, hidden_size]."""
_TRIED_TOKENS = 12
"""Tokens on which heads are tried."""
_SAME = 1e-3
"""Largest difference of logits, as a share of the largest one, at which they count as the same."""


def body_of(model: PreTrainedModel) -> nn.Module:
    """The model without its head. Some models are their own `base_model`: then it is the model inside."""
    base: nn.Module = model.base_model
    inside = (child for child in model.children() if isinstance(child, PreTrainedModel))
    return next(inside, base) if base is model else base


@torch.no_grad()
def find_head(model: PreTrainedModel, vocabulary: int) -> Head:
    """What makes the model's logits of its last hidden states, found on a few tokens.

    It is what the model does behind its body (bounds and scales included) or, where a model computes nothing
    without token ids, its output embeddings. Raises `PolicyError` if neither gives its logits.
    """
    ids = torch.arange(_TRIED_TOKENS, device=model.device)[None] % vocabulary
    expected = model(input_ids=ids, use_cache=False).logits[0]
    hidden = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
    differences = []
    for head in (_AfterBody(model), model.get_output_embeddings()):
        try:
            difference = float((head(hidden) - expected).abs().max())
        except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
            differences.append(repr(error))
            continue
        if difference <= _SAME * float(expected.abs().max()):
            return head
        differences.append(f"they differ by {difference:.2g}")
    raise PolicyError(
        f"The logits of {type(model).__name__} do not follow from its last hidden states, so it cannot be "
        f"trained: {'; '.join(differences)}."
    )


class _BodyOutput:
    """What a model's head reads of its body's output: the hidden states, and nothing else."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _HiddenStates(nn.Module):
    """In place of a model's body: returns the hidden states that it is given."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _BodyOutput:
        """The hidden states, as a body returns them."""
        return _BodyOutput(inputs_embeds)


class _AfterBody:
    """What a model does with its body's output. It shares the model's weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = copy.copy(model)
        body = body_of(model)
        vars(self._model)["_modules"] = {
            name: _HiddenStates() if child is body else child for name, child in model.named_children()
        }

    def __call__(self, hidden_ME: Tensor) -> Tensor:
        logits: Tensor = self._model(inputs_embeds=hidden_ME[None], use_cache=False).logits[0]
        return logits
