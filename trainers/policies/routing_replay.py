"""Routing replay (R3, arXiv 2510.11370): a mixture-of-experts model uses the experts that an engine recorded.

Only the choice is replayed. The weights of the chosen experts are those that the model computes from its own
router scores, with their gradient. This holds for every family without knowing its formula: the model's own
code runs, and `torch.topk` over the experts returns the recorded ones in place of the best ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from harnessgym.errors import PolicyError
from harnessgym.routed_experts import ExpertArray, RowExperts
from trainers.packing import Index, Routing

_ROUTERS = ("gate", "router")
"""Names of the module that chooses experts, in the families of transformers."""
_TOP_K = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""What families call the number of experts per token."""
_BEST = (torch.topk, Tensor.topk)


@dataclass(frozen=True, slots=True)
class Router:
    """A module that chooses experts with `torch.topk`."""

    name: str
    module: nn.Module
    layer: int
    """Number of its decoder layer."""
    experts: int
    """How many there are to choose from."""


def routers_of(model: nn.Module) -> tuple[Router, ...]:
    """The routers of a model, in order of their layers: one for each module that has `experts`."""
    found = list[Router]()
    for name, block in model.named_modules():
        experts = dict(block.named_children()).get("experts")
        if experts is None:
            continue
        number = getattr(experts, "num_experts", None) or len(tuple(experts.children()))
        layer = next((int(part) for part in name.split(".") if part.isdecimal()), len(found))
        named = (getattr(block, each, None) for each in _ROUTERS)
        # A plain linear layer only gives scores; then the block itself chooses.
        own = next(
            (each for each in named if isinstance(each, nn.Module) and not isinstance(each, nn.Linear)), block
        )
        found.append(Router(name, own, layer, int(number)))
    return tuple(found)


class RoutingReplay:
    """Replays recorded experts in the passes of one model."""

    def __init__(self, model: nn.Module, top_k: int, layers: int) -> None:
        """`top_k` is the number of experts per token, `layers` the number of decoder layers."""
        self.routers = routers_of(model)
        self.top_k = top_k
        self.layers = layers
        self._experts_LNK: Tensor | None = None
        """What the pass under way replays."""

    @classmethod
    def of_model(cls, model: PreTrainedModel) -> Self:
        """For a model of transformers, with experts or without."""
        text = model.config.get_text_config()
        top_k = next((getattr(text, name) for name in _TOP_K if getattr(text, name, None)), 0)
        return cls(model, int(top_k), int(text.num_hidden_layers))

    @contextmanager
    def replaying(self, experts_LNK: Tensor | None) -> Iterator[None]:
        """Within this context the model's pass over N tokens uses these experts.

        int16 [routers, N, top_k], -1 where the model chooses itself; None: it always does. Raises
        `PolicyError` if a router did not choose once, by `torch.topk` over all experts.
        """
        if experts_LNK is None:
            yield
            return
        replaced = [0] * len(self.routers)
        self._experts_LNK = experts_LNK
        try:
            with self._hooked(experts_LNK, replaced):
                yield
        finally:
            self._experts_LNK = None
        wrong = next(
            (router for router, times in zip(self.routers, replaced, strict=True) if times != 1), None
        )
        if wrong is not None:
            raise PolicyError(
                f"The experts of {wrong.name} ({type(wrong.module).__name__}) cannot be replayed: it does "
                f"not choose {self.top_k} of {wrong.experts} once for each token. Set "
                'trainer.routing_replay = "off".'
            )

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts of a block's pass and of its recomputation, for `torch.utils.checkpoint`.

        The backward pass computes blocks again when the pass is over, so the experts are kept with the block.
        """
        if self._experts_LNK is None:
            return nullcontext(), nullcontext()
        return nullcontext(), self._hooked(self._experts_LNK, [0] * len(self.routers))

    def of_rows(
        self, routing: Routing, places: Sequence[Index], tokens: int, device: torch.device
    ) -> Tensor | None:
        """The experts of a pass over `tokens` tokens, as `replaying` takes them; None if no row has any.

        `places` are the positions of each row's tokens in the pass. Raises `PolicyError` for experts that the
        model does not have.
        """
        if routing is None or all(each is None for each in routing):
            return None
        if not self.routers:
            raise PolicyError(
                "The rows have routed experts, and the model has no experts that could be replayed. Set "
                'trainer.routing_replay = "off".'
            )
        experts = np.full((len(self.routers), tokens, self.top_k), -1, np.int16)
        limits = np.array([router.experts for router in self.routers])[:, None]
        for each, place in zip(routing, places, strict=True):
            if each is None:
                continue
            chosen = self._by_router(each)
            if (chosen >= limits).any():
                raise PolicyError(
                    f"The rows were routed to expert {chosen.max()}, and the model has {limits.min()} "
                    "experts: they were sampled by another model."
                )
            experts[:, place[each.recorded]] = chosen.transpose(1, 0, 2)
        return torch.from_numpy(experts).to(device)

    def _by_router(self, row: RowExperts) -> ExpertArray:
        """The recorded tokens' experts [tokens, routers, top_k]."""
        size = int(np.prod(row.experts.shape[1:]))
        layers = size // self.top_k if self.top_k else 0
        if layers * self.top_k != size or layers not in (len(self.routers), self.layers):
            raise PolicyError(
                f"Each token has {list(row.experts.shape[1:])} routed experts; the model has {self.layers} "
                f"layers, of which {len(self.routers)} choose {self.top_k} experts each."
            )
        # Some engines report one flat list per token, and some all layers, with zeros where there are no
        # experts.
        experts = row.experts[row.recorded].reshape(-1, layers, self.top_k)
        return experts if layers == len(self.routers) else experts[:, [each.layer for each in self.routers]]

    @contextmanager
    def _hooked(self, experts_LNK: Tensor, replaced: list[int]) -> Iterator[None]:
        """While it lasts, routers choose these experts; `replaced` counts how often each did."""
        with ExitStack() as hooks:
            for index, router in enumerate(self.routers):
                choice = _RecordedChoice(experts_LNK[index], router.experts, partial(_count, replaced, index))
                before = router.module.register_forward_pre_hook(choice.enter)
                after = router.module.register_forward_hook(choice.leave, always_call=True)
                hooks.callback(before.remove)
                hooks.callback(after.remove)
            yield


class _RecordedChoice(TorchFunctionMode):
    """Within it, the best of all experts are the recorded ones."""

    def __init__(self, experts_NK: Tensor, experts: int, count: Callable[[], None]) -> None:
        super().__init__()
        self.experts_NK = experts_NK
        self.scores = torch.Size((len(experts_NK), experts))
        self.count = count

    def enter(self, *_: object) -> None:
        """Begin: a hook that is called before a router."""
        super().__enter__()  # type: ignore[no-untyped-call]

    def leave(self, *_: object) -> None:
        """End: a hook that is called after a router, also if it failed."""
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        out = func(*args, **(kwargs or {}))
        if func not in _BEST:
            return out
        scores = args[0] if args else (kwargs or {})["input"]
        if scores.shape != self.scores or out.indices.shape != self.experts_NK.shape:
            return out  # it chooses groups of experts
        self.count()
        recorded = self.experts_NK.to(out.indices.dtype)
        chosen = torch.where(recorded < 0, out.indices, recorded)
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


def _count(counts: list[int], index: int) -> None:
    counts[index] += 1
