"""How stale the tokens were that were trained, step by step, as the ledger tells."""

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
    """Trained tokens by the staleness of their rollout (that of its oldest token), of the steps that still
    count.

    A trainer that goes on from an earlier version gives up the steps behind it: they are forgotten when the
    first of them is done again.
    """

    last_id: str = ""
    """Of the newest entry that was added."""
    _steps: dict[int, _Step] = field(default_factory=dict)

    def add(self, entries: Iterable[TrainedTokens]) -> None:
        """Entries of the ledger, in the order of their ids."""
        for entry in entries:
            step = self._steps.get(entry.step)
            if step is None or step.version != entry.version:
                self._steps = {number: kept for number, kept in self._steps.items() if number < entry.step}
                step = self._steps[entry.step] = _Step(entry.version, entry.id)
            step.tokens[entry.max_staleness] += entry.tokens
            self.last_id = step.last_id = entry.id

    def forget_before(self, row_id: str) -> None:
        """Drop steps whose entries all have ids below this one."""
        self._steps = {number: step for number, step in self._steps.items() if step.last_id >= row_id}

    @property
    def all(self) -> Counter[int]:
        """Tokens by staleness, of all steps."""
        return sum((step.tokens for step in self._steps.values()), Counter())

    @property
    def newest(self) -> Counter[int]:
        """Tokens by staleness, of the newest step."""
        return Counter(self._steps[max(self._steps)].tokens) if self._steps else Counter()
