"""The contract of a selector: which task the next training group is of, and how many rollouts it has.

Members live in `harnessgym/scheduling/selectors/`; a run names one in its configuration:

```toml
[generate]
selector = "vade"
settings = { visit_decay = 0.9 }
```

A selector has no memory: what it answers follows from the run's seed and the visits that the store has, so
that whoever goes on with a run goes on with the same plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from harnessgym.config import validate
from harnessgym.registry import load
from harnessgym.store.task_history import Visit

__all__ = ["Pick", "SelectionPool", "Selector", "Visit", "make_selector"]


@dataclass(frozen=True, slots=True)
class SelectionPool:
    """What there is to select from."""

    tasks: tuple[str, ...]
    """Keys of the training tasks, in the task set's order."""
    group_size: int
    """Rollouts of a group, where the selector does not choose otherwise."""
    groups_per_step: int
    """Groups of a batch."""
    seed: int
    """The run's."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The next group. Raises `ValueError` for one without rollouts."""

    task: str
    rollouts: int

    def __post_init__(self) -> None:
        if self.rollouts < 1:
            raise ValueError(f"A group needs a rollout; the selector wants {self.rollouts} of {self.task!r}.")


class Selector(Protocol):
    """Chooses groups. Made once from its settings and a `SelectionPool`."""

    @property
    def settings(self) -> type[BaseModel]:
        """What its constructor takes, before the pool."""
        ...

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """The next `wanted` groups, after `number` others that were chosen, with all visits so far in order
        of submission.

        A function of its arguments and of what the selector was made with, and of nothing else.
        """
        ...


def make_selector(name: str, settings: Mapping[str, Any], pool: SelectionPool) -> Selector:
    """A selector by its name or `module:Class`.

    Raises `ConfigError` for a name or settings that are wrong, and for one that has nothing to choose from in
    this pool.
    """
    factory = load("selector", name)
    made: Selector = factory(validate(factory.settings, dict(settings), f"selector {name!r}"), pool)
    return made
