"""The policy as trainers see it: log-probabilities with gradients, and weights by their Hugging Face names.

There are two kinds. `policies/native.py` is our own module for two architectures, which is fast on CPUs and
has the cache that the embedded engine needs. `policies/transformers.py` is any model that `transformers`
loads. `policies/loading.py` chooses.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harnessgym.tokens import IdArray

if TYPE_CHECKING:
    from trainers.lora import Lora

_LOGITS = 1 << 26
"""Most logits that are kept for the backward pass: 256 MiB."""


class Policy(nn.Module, ABC):
    """A causal language model under training."""

    vocabulary: int
    """Number of logits per token."""
    context: int
    """Most tokens that a row may have."""
    hidden_size: int
    """Size of `features`."""
    one_process_because: str = ""
    """Why only one process can train it; empty if several can."""

    def __init__(self) -> None:
        super().__init__()
        self.products: torch.dtype = torch.float32
        """Precision of the matrix products; autocast is used unless it is float32. Weights, norms, the
        residual stream and the softmax stay float32, which is closer to the float32 policy than casting
        everything."""
        self.checkpointing = False
        """Whether `recompute_activations` was called."""
        self.lora: Lora | None = None
        """Its adapters, if there are any; see `trainers.lora`."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    @property
    @abstractmethod
    def blocks(self) -> tuple[nn.Module, ...]:
        """The decoder layers, which are sharded one by one."""

    def recompute_activations(self) -> None:
        """From now on the backward pass computes each block again, so that memory holds the activations of
        one block. Raises `PolicyError` if the policy cannot do that.
        """
        self.checkpointing = True

    @abstractmethod
    def pass_size(self, rows: Sequence[IdArray]) -> int:
        """Tokens that a pass over these rows computes: shared prefixes may count once, padding counts."""

    @abstractmethod
    def hidden(self, rows: Sequence[IdArray], masks: Sequence[IdArray]) -> tuple[Tensor, Tensor]:
        """For the tokens with mask 1, row after row: the last hidden state before each, [M, hidden], as
        `logits` takes it, and the token's id, int64 [M].

        A row is int [T] and not empty, a mask [T]. A row's first token has no state before it: its mask is 0.
        """

    @abstractmethod
    def logits(self, hidden_ME: Tensor) -> Tensor:
        """Logits [M, vocabulary] of hidden states."""

    @abstractmethod
    def features(self, hidden_ME: Tensor) -> Tensor:
        """Normalised hidden states [M, hidden_size], which a critic reads."""

    @abstractmethod
    def trunk(self) -> "Policy":
        """A copy without the vocabulary's projection. This policy must not be sharded."""

    @abstractmethod
    def linear_layers(self) -> tuple[str, ...]:
        """Names of the linear layers in a block that can have adapters, as Hugging Face names them."""

    @abstractmethod
    def unfuse(self, layers: Sequence[str]) -> None:
        """Make modules of their own of these linear layers, where they are fused."""

    @abstractmethod
    def published(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of all weights under their Hugging Face names, as policy versions store them. Adapters are
        merged.

        `state` replaces `state_dict()` if the policy is sharded and has only parts of the tensors.
        """

    @abstractmethod
    def state_dict_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hugging Face tensors in the layout of `state_dict()`, and adapters of zero: the inverse of
        `published`.

        Raises `PolicyError` naming the first tensor that is missing, misshaped or not used.
        """

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy Hugging Face tensors into the policy, and set its adapters, if any, to zero.

        Raises `PolicyError` as `state_dict_of` does; the policy is then unchanged.
        """
        own = self.state_dict_of(weights)
        for name, tensor in self.state_dict().items():
            tensor.copy_(own[name])

    def logprobs(self, rows: Sequence[IdArray], masks: Sequence[IdArray], temperature: float = 1.0) -> Tensor:
        """Logprobs at `temperature` of the tokens with mask 1, row after row, [M]: float32, or float64 if the
        policy is. Rows and masks are those of `hidden`.

        Logits are computed for these tokens only. If they would take much memory they are not kept, and the
        backward pass computes them again.
        """
        hidden_ME, targets_M = self.hidden(rows, masks)
        limit = max(1, _LOGITS // self.vocabulary)
        if len(hidden_ME) <= limit:
            return self._chosen(hidden_ME, targets_M, temperature)
        parts = zip(torch.split(hidden_ME, limit), torch.split(targets_M, limit), strict=True)
        return torch.cat(
            [checkpoint(self._chosen, *part, temperature, use_reentrant=False) for part in parts]
        )

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which matrix products have the precision `products`."""
        return (
            nullcontext()
            if self.products == torch.float32
            else torch.autocast(self.device.type, self.products)
        )

    def _chosen(self, hidden_ME: Tensor, targets_M: Tensor, temperature: float) -> Tensor:
        with self.autocast():
            scores_MV = accurate(self.logits(hidden_ME)) / temperature
        return scores_MV.gather(-1, targets_M[:, None])[:, 0] - scores_MV.logsumexp(-1)


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each token given those before it, [B, T]: float32, or float64 if the logits are.

    Position 0, which nothing predicts, is 0. This is the distribution at `temperature` without truncation
    (top-p = 1, no top-k), which policy gradients need.
    """
    scores = accurate(logits_BTV[:, :-1]) / temperature
    chosen = scores.gather(-1, ids_BT[:, 1:, None]).squeeze(-1) - scores.logsumexp(-1)
    return F.pad(chosen, (1, 0))


def accurate(logits: Tensor) -> Tensor:
    """Logits in float32, or float64 if they are, so that sums of their exponentials are accurate."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
