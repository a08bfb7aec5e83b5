"""The policy as trainers see it: log-probabilities with gradients, and weights by their Hugging Face names.

There are two kinds. `policies/native.py` is our own module for two architectures, which is fast on CPUs and
has a cache of its own for the embedded engine. `policies/transformers.py` is any model that `transformers`
loads. `policies/loading.py` chooses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harnessgym.tokens import IdArray
from trainers.packing import Routing

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
        """Tokens that a pass over these rows computes: shared prefixes may count once, padding counts.

        Rows whose experts are replayed are given by their `packing.sharing_keys`.
        """

    @abstractmethod
    def hidden(
        self, rows: Sequence[IdArray], masks: Sequence[IdArray], routing: Routing = None
    ) -> tuple[Tensor, Tensor]:
        """For the tokens with mask 1, row after row: the last hidden state before each, [M, hidden], as
        `logits` takes it, and the token's id, int64 [M].

        A row is int [T] and not empty, a mask [T]. A row's first token has no state before it: its mask is 0.
        `routing` has each row's recorded experts, which are used in place of those that the policy would
        choose. Raises `PolicyError` if the policy has no such experts.
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

    def logprobs(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        temperature: float = 1.0,
        routing: Routing = None,
    ) -> Tensor:
        """Logprobs at `temperature` of the tokens with mask 1, row after row, [M]: float32, or float64 if the
        policy is. Rows, masks and routing are those of `hidden`.

        Logits are computed for these tokens only. If they would take much memory they are not kept, and the
        backward pass computes them again.
        """

        def compute(hidden_ME: Tensor, targets_M: Tensor) -> Tensor:
            return chosen_logprobs(self._scores(hidden_ME, temperature), targets_M)

        return self._in_parts(compute, *self.hidden(rows, masks, routing))

    def likeliest(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        temperature: float,
        count: int,
        vocabulary: int,
        routing: Routing = None,
    ) -> Tensor:
        """For the tokens with mask 1 the `count` likeliest tokens in their place, then the logprobs of these,
        float64 [M, 2 * count]. Rows, masks and routing are those of `hidden`. Ids from `vocabulary` on do not
        count.
        """

        def compute(hidden_ME: Tensor, _: Tensor) -> Tensor:
            scores_MV = self._scores(hidden_ME, temperature)[:, :vocabulary]
            top = scores_MV.topk(count, dim=-1)
            logprobs_MK = top.values - scores_MV.logsumexp(-1, keepdim=True)
            return torch.cat((top.indices.double(), logprobs_MK.double()), dim=-1)

        return self._in_parts(compute, *self.hidden(rows, masks, routing))

    def compared(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        temperature: float,
        comparison: "PolicyComparison",
        routing: Routing = None,
    ) -> Tensor:
        """`logprobs`, and beside each the divergence from another policy, [M, 2]."""

        def compute(hidden_ME: Tensor, targets_M: Tensor, *tensors: Tensor) -> Tensor:
            scores_MV = self._scores(hidden_ME, temperature)
            divergence_M = comparison.divergence(scores_MV, *tensors)
            return torch.stack((chosen_logprobs(scores_MV, targets_M), divergence_M), dim=1)

        known = [each.to(self.device) for each in comparison.tensors(rows, masks)]
        return self._in_parts(compute, *self.hidden(rows, masks, routing), *known)

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which matrix products have the precision `products`."""
        return (
            nullcontext()
            if self.products == torch.float32
            else torch.autocast(self.device.type, self.products)
        )

    def _scores(self, hidden_ME: Tensor, temperature: float) -> Tensor:
        """Logits / temperature, [M, vocabulary]."""
        with self.autocast():
            return accurate(self.logits(hidden_ME)) / temperature

    def _in_parts(self, compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """What `compute` makes of tensors [M, ...], without keeping more logits than `_LOGITS`: the backward
        pass computes those of each part again.
        """
        limit = max(1, _LOGITS // self.vocabulary)
        if len(tensors[0]) <= limit:
            return compute(*tensors)
        parts = zip(*(torch.split(tensor, limit) for tensor in tensors), strict=True)
        return torch.cat([checkpoint(compute, *part, use_reentrant=False) for part in parts])


class PolicyComparison(Protocol):
    """A divergence of the policy from another one, at the positions of trained tokens."""

    def tensors(self, rows: Sequence[IdArray], masks: Sequence[IdArray]) -> tuple[Tensor, ...]:
        """What is known of the other policy for the tokens with mask 1, row after row, [M, ...] each."""
        ...

    def divergence(self, scores_MV: Tensor, *tensors: Tensor) -> Tensor:
        """The divergence at M positions, [M], of the policy with these logits / temperature from one of which
        these tensors are known.
        """
        ...


def chosen_logprobs(scores_MV: Tensor, targets_M: Tensor) -> Tensor:
    """Logprobs of these tokens, [M]."""
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
