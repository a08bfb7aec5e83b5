"""Counts trained tokens by staleness, step by step, from the ledger."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from harnessgym.store.recent import TrainedTokens


@dataclass
class _Step:
    version: int
    last_id: str
    tokens: Counter[int] = field(default_factory=Counter)


@dataclass
class StalenessCounts:
    """Trained tokens of the surviving steps, by the staleness of their rollout's oldest token.

    A trainer that resumes from an earlier version abandons the steps after it. They are dropped here when the
    first of them is done again.
    """

    last_id: str = ""
    """Id of the newest entry."""
    _steps: dict[int, _Step] = field(default_factory=dict)

    def add(self, entries: Iterable[TrainedTokens]) -> None:
        """Add entries of the ledger, in order of their ids."""
        for entry in entries:
            step = self._steps.get(entry.step)
            if step is None or step.version != entry.version:
                # A new version of a known step means that the trainer resumed earlier: later steps are void.
                self._steps = {number: kept for number, kept in self._steps.items() if number < entry.step}
                step = self._steps[entry.step] = _Step(entry.version, entry.id)
            step.tokens[entry.max_staleness] += entry.tokens
            self.last_id = step.last_id = entry.id

    def forget_before(self, row_id: str) -> None:
        """Drop steps whose entries all have ids below `row_id`."""
        self._steps = {number: step for number, step in self._steps.items() if step.last_id >= row_id}

    @property
    def all(self) -> Counter[int]:
        """Tokens by staleness over all steps."""
        return sum((step.tokens for step in self._steps.values()), Counter())

    @property
    def newest(self) -> Counter[int]:
        """Tokens by staleness in the newest step."""
        return Counter(self._steps[max(self._steps)].tokens) if self._steps else Counter()
