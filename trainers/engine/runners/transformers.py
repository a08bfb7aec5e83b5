"""Runs any model of transformers, with the cache that its `generate` uses.

It is slower than the native runner: keys and values are copied at every token, and prompts are computed one
by one. What a model's cache can do is not looked up in a list of families: it is tried when the runner is
made, on a few tokens, against the same tokens without a cache. Where rows cannot be decoded together, they
are decoded one by one. Where several tokens cannot follow a cache at once, prefixes are not shared. Where the
cache does not give what the model computes without it, each token computes its whole row again.

A row of a model that keeps a state, or drops tokens behind a window, can be continued only where its cache
was copied: at its end, and before the last token of what was last computed at once. So a conversation goes on
from its last answer, and equal prompts are computed once.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, DynamicCache

from harnessgym.tokens import IdArray
from trainers.engine.runner import Ints
from trainers.engine.runners.cache_layers import copied, croppable_length, has_keys, unknown_layers
from trainers.engine.runners.cache_trial import FAILURES, CacheTrial
from trainers.engine.runners.row_context import ContextCache, DecodeBatch, RowContext
from trainers.policies.transformers import TransformersPolicy


class TransformersRunner:
    """Computes rows with transformers' cache."""

    def __init__(self, policy: TransformersPolicy, rows: int, length: int) -> None:
        self.policy = policy
        self._device = policy.device
        self._body: Any = policy.body
        self._config = policy.model.config.get_text_config(decoder=True)
        arguments = inspect.signature(self._body.forward).parameters
        self._takes_positions = "position_ids" in arguments
        self._cache_name = "past_key_values" if "past_key_values" in arguments else "cache_params"
        turn = policy.constant_rope
        self._limit = turn if _has_dynamic_rope(self._config) else None
        self.uncached_because = ""
        """Why each token computes its whole row again; empty if a cache is used."""
        self.unshared_because = ""
        """Why rows do not continue from prefixes of others; empty if they do."""
        self.alone_because = "" if turn is None else "its RoPE depends on the length of the row"
        """Why rows are decoded one by one; empty if they are decoded together."""
        self.cache = ContextCache(rows, min(length, self._limit or length), 0, turn)
        with torch.inference_mode():
            self._try_cache()
        self.cache.shared = not (self.uncached_because or self.unshared_because)

    def prefill(self, rows: Ints, ids_BT: IdArray, start_B: Ints, count_B: Ints, *, whole: bool) -> Tensor:
        """Hidden states [B, 1, hidden] or [B, T, hidden]; see `ModelRunner`."""
        found = []
        for row, ids, start, count in zip(
            rows.tolist(), ids_BT.tolist(), start_B.tolist(), count_B.tolist(), strict=True
        ):
            if start == 0:
                self.cache.clear_row(row)
            context = self.cache.contexts[row]
            assert len(context.ids) == start
            hidden_TE = self.append(context, ids[:count])
            padded = F.pad(hidden_TE, (0, 0, 0, ids_BT.shape[1] - count)) if whole else hidden_TE[-1:]
            found.append(padded)
        return torch.stack(found)

    def decode(self, ids_B: IdArray, start_B: Ints) -> Tensor:
        """Hidden states [B, hidden]; see `ModelRunner`."""
        contexts = self.cache.contexts[: len(ids_B)]
        assert [len(context.ids) for context in contexts] == start_B.tolist()
        ids = dict(zip(contexts, ids_B.tolist(), strict=True))
        if self.uncached_because or self.alone_because:
            return torch.stack([self.append(each, [ids[each]])[-1] for each in contexts])
        found = self.append_together(contexts, ids)
        return torch.stack([found[each] for each in contexts])

    def notice(self) -> str:
        """That this is slower, and what else the trial found."""
        remarks = [
            ("each token computes its whole row again", self.uncached_because),
            ("rows are decoded one by one", self.alone_because),
            ("prefixes are not shared", self.unshared_because),
        ]
        told = [f"{what}, because {reason}" for what, reason in remarks if reason]
        if self._limit is not None:
            told.append(f"rows end at {self._limit} tokens, beyond which its RoPE changes with every token")
        return "; ".join(
            ["It is served through transformers' cache, which is slower than our own module", *told]
        )

    def append_together(
        self, contexts: Sequence[RowContext], ids: Mapping[RowContext, int]
    ) -> dict[RowContext, Tensor]:
        """Append a token to each row, computed together; their hidden states [hidden]."""
        batch = self.cache.batch
        batch.hold(contexts)
        lengths = np.array([len(context.ids) for context in batch.contexts])
        mask = None
        if lengths.min() < lengths.max() and batch.cache is not None and has_keys(batch.cache):
            places = np.arange(lengths.max() + 1)
            mask = self._tensor((places >= (lengths.max() - lengths)[:, None]).astype(np.int64))
        ids_B1 = self._tensor(np.array([[ids[context]] for context in batch.contexts]))
        hidden_BE = self._forward(ids_B1, batch.cache, self._tensor(lengths[:, None]), mask)[:, 0]
        for context in batch.contexts:
            context.ids.append(ids[context])
        return dict(zip(batch.contexts, hidden_BE, strict=True))

    def append(self, context: RowContext, ids: list[int]) -> Tensor:
        """Append tokens to one row; their hidden states [T, hidden]."""
        start = len(context.ids)
        self.cache.batch.release(context)
        anew = self._begins_anew(context, len(ids))
        context.ids += ids
        if self.uncached_because:
            return self.whole(context.ids)[start:]
        if anew or start == 0:
            context.cache = self._new_cache()
            context.mark = None
        first = 0 if anew else start
        return torch.cat(list(self._computed(context, first)))[start - first :]

    def whole(self, ids: list[int]) -> Tensor:
        """Hidden states [T, hidden] of a row, without a cache."""
        return self._forward(self._tensor(np.array([ids])))[0]

    def _computed(self, context: RowContext, start: int) -> Iterator[Tensor]:
        """Hidden states of a row's tokens from `start`, in one part or two [T, hidden]."""
        end = len(context.ids)
        turn = self.policy.constant_rope
        # A row that cannot be cropped is computed in two parts, so that its cache before the last token is
        # copied: equal prompts continue from there.
        marks = (
            not self.unshared_because
            and end - start > 1
            and end >= self.cache.croppable
            and (turn is None or not end - 1 <= turn < end)
        )
        for first, last in ((start, end - 1), (end - 1, end)) if marks else ((start, end),):
            ids_1T = self._tensor(np.array([context.ids[first:last]]))
            yield self._forward(ids_1T, context.cache, self._tensor(np.arange(first, last)[None]))[0]
            if last < end and context.cache is not None:
                context.mark = last, copied(context.cache)

    def _forward(
        self,
        ids_BT: Tensor,
        cache: Cache | None = None,
        position_BT: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The model's last hidden states [B, T, hidden]."""
        others: dict[str, Any] = {} if mask is None else {"attention_mask": mask}
        if cache is not None:
            others[self._cache_name] = cache
            if self._takes_positions:
                others["position_ids"] = position_BT
        out = self._body(input_ids=ids_BT, use_cache=cache is not None, **others)
        hidden: Tensor = out.last_hidden_state
        return hidden

    def _begins_anew(self, context: RowContext, count: int) -> bool:
        """Whether a row's RoPE changes with so many more tokens, so that its cache is of no use."""
        turn = self.policy.constant_rope
        return turn is not None and 0 < len(context.ids) <= turn < len(context.ids) + count

    def _try_cache(self) -> None:
        """Compares what the cache gives with rows that are computed whole."""
        trial = CacheTrial(self)
        if not self.policy.model._supports_default_dynamic_cache():  # noqa: SLF001
            self.uncached_because = "transformers has no common cache for it"
            return
        try:
            empty = self._new_cache()
            self.cache.croppable = croppable_length(empty)
            unknown = unknown_layers(empty)
        except FAILURES as error:
            self.uncached_because = f"its cache cannot be made ({error})"
            return
        if unknown and not self.alone_because:
            self.alone_because = f"its cache has layers of the kind {min(unknown)}"
        self.uncached_because = trial.alone()
        if not self.uncached_because:
            self.unshared_because = trial.continued()
            self.alone_because = self.alone_because or trial.together()
            self.cache.batch = DecodeBatch()  # without the trial's rows

    def _new_cache(self) -> Cache:
        return DynamicCache(config=self._config)

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(array, dtype=torch.long, device=self._device)


def _has_dynamic_rope(config: Any) -> bool:
    """Whether positions change with every token of a long row."""
    ropes = getattr(config, "rope_parameters", None) or {}
    each = [rope for rope in (ropes, *ropes.values()) if isinstance(rope, Mapping)]
    return any(rope.get("rope_type") == "dynamic" for rope in each)
