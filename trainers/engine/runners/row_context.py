"""What a model of transformers has computed of each row, and the rows that are decoded together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import Cache

from trainers.engine.runner import Ints
from trainers.engine.runners.cache_layers import copied, cropped, joined, selected


@dataclass(slots=True, eq=False)
class RowContext:
    """A row's tokens, and what the model keeps of them."""

    ids: list[int]
    cache: Cache | None = None
    """None while it is in the `DecodeBatch`, and in a model whose cache is not used."""
    mark: tuple[int, Cache] | None = None
    """An earlier length, and the cache there, for models whose cache cannot be cropped."""

    def own_cache(self) -> Cache:
        """Its cache, which is not in the batch."""
        assert self.cache is not None
        return self.cache


class DecodeBatch:
    """Rows that are decoded together, in one cache, until one of them leaves or another joins."""

    def __init__(self) -> None:
        self.contexts: list[RowContext] = []
        self.cache: Cache | None = None

    def hold(self, contexts: Sequence[RowContext]) -> None:
        """Hold these rows, and no others. Their order stays as it is for those that are there."""
        wanted = set(contexts)
        for context in [each for each in self.contexts if each not in wanted]:
            context.cache = self.cache_of(context)
        staying = [number for number, each in enumerate(self.contexts) if each in wanted]
        if len(staying) < len(self.contexts):
            self.contexts = [self.contexts[number] for number in staying]
            self.cache = selected(self._cache(), staying, self.length) if staying else None
        there = set(self.contexts)
        joining = [context for context in contexts if context not in there]
        if joining:
            parts = [(context.own_cache(), len(context.ids)) for context in joining]
            if self.contexts:
                parts.insert(0, (self._cache(), self.length))
            self.cache = joined(parts)
            self.contexts += joining
            for context in joining:
                context.cache = None

    def release(self, context: RowContext) -> None:
        """Give a row its own cache again, if it is here."""
        if context in self.contexts:
            self.hold([each for each in self.contexts if each is not context])

    def cache_of(self, context: RowContext) -> Cache:
        """A copy of the cache of a row that is here."""
        return selected(self._cache(), [self.contexts.index(context)], len(context.ids))

    @property
    def length(self) -> int:
        """Length of the longest row."""
        return max((len(context.ids) for context in self.contexts), default=0)

    def _cache(self) -> Cache:
        assert self.cache is not None
        return self.cache


class ContextCache:
    """The `RowCache` of models of transformers: a context for each row."""

    def __init__(self, rows: int, length: int, croppable: float, turn: int | None) -> None:
        """A row of fewer than `croppable` tokens can be cropped; see `cache_layers.croppable_length`.

        What a row of more than `turn` tokens holds is of no use to a row of at most as many.
        """
        self.length = length
        self.croppable = croppable
        self.turn = turn
        self.shared = True
        """Whether rows may continue from prefixes of others."""
        self.contexts = [RowContext([]) for _ in range(rows)]
        self.batch = DecodeBatch()

    def usable(self, rows: Ints, lengths_B: Ints) -> Ints:
        """Prefixes of that length, or those that a row holds a cache of; see `RowCache`."""
        if not self.shared:
            return np.zeros_like(lengths_B)
        pairs = zip(rows.tolist(), lengths_B.tolist(), strict=True)
        return np.array([self._usable(self.contexts[row], length) for row, length in pairs], np.int64)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a prefix; keys and values are shared."""
        context = self.contexts[source]
        prefix = RowContext(context.ids[:length])
        whole = length == len(context.ids)
        if context.mark is not None and context.mark[0] == length and not whole:
            prefix.cache = copied(context.mark[1])
        elif length > 0 and (context.cache is not None or context in self.batch.contexts):
            own = self.batch.cache_of(context) if context.cache is None else copied(context.cache)
            prefix.cache = own if whole else cropped(own, length)
            prefix.mark = context.mark if whole else None
        self.contexts[target] = prefix

    def swap_rows(self, a: int, b: int, length: int) -> None:  # noqa: ARG002
        """Exchange two rows' contexts."""
        self.contexts[a], self.contexts[b] = self.contexts[b], self.contexts[a]

    def clear_row(self, row: int) -> None:
        """Drop a row's context."""
        self.contexts[row] = RowContext([])

    def _usable(self, context: RowContext, length: int) -> int:
        whole = len(context.ids)
        if length >= whole:
            return whole
        if self.turn is not None and length <= self.turn < whole:
            return 0
        if whole < self.croppable:
            return length
        return context.mark[0] if context.mark is not None and context.mark[0] <= length else 0
