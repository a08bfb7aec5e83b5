"""The contract of a selector, which chooses the task and the size of the next training group.

Members live in `harnessgym/scheduling/selectors/`; a run names one in its configuration:

```toml
[generate]
selector = "vade"
settings = { visit_decay = 0.9 }
```

A selector has no memory: its choice depends only on the run's seed and the visits in the store. So a resumed
run follows the same plan.
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
    """The training tasks and sizes to select from."""

    tasks: tuple[str, ...]
    """Keys of the training tasks, in the task set's order."""
    group_size: int
    """Rollouts in a group, unless the selector chooses another size."""
    groups_per_step: int
    """Groups in a batch."""
    seed: int
    """The run's seed."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The task and size of a group. Raises `ValueError` for a group without rollouts."""

    task: str
    rollouts: int

    def __post_init__(self) -> None:
        if self.rollouts < 1:
            raise ValueError(f"A group needs a rollout; the selector wants {self.rollouts} of {self.task!r}.")


class Selector(Protocol):
    """Chooses groups. Constructed once from its settings and a `SelectionPool`."""

    @property
    def settings(self) -> type[BaseModel]:
        """Class of the settings that its constructor takes before the pool."""
        ...

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """The next `wanted` groups after `number` chosen ones. `visits` holds all so far in submission order.

        Must depend only on the arguments and on what the selector was constructed with.
        """
        ...


def make_selector(name: str, settings: Mapping[str, Any], pool: SelectionPool) -> Selector:
    """Construct a selector by its name or `module:Class`.

    Raises `ConfigError` for an unknown name, wrong settings, or a pool that the selector cannot use.
    """
    factory = load("selector", name)
    made: Selector = factory(validate(factory.settings, dict(settings), f"selector {name!r}"), pool)
    return made
