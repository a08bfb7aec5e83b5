"""The seam between stored rollouts and estimators.

An estimator takes one group and gives every row of every rollout its advantages. The baseline is over the
whole group, also where some of its tokens will not be trained. A token that is masked (advantage zero) still
counts in the loss's denominators; a rollout that is dropped (None) does not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError, TrainerError
from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from trainers.trained_policy import TrainedPolicy

Float64Array = npt.NDArray[np.float64]
Value = float | FloatArray
"""One advantage for all tokens of a row, or float32 [T]."""
Advantages = list[list[Value] | None]
"""Per rollout of a group, per row; None for a rollout that is dropped: it is left out of the step and of
its means."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One rollout of a group with all that it was rewarded with. Rewards of calls are with the rows'
    turns.
    """

    rollout_id: str
    reward: float
    rows: tuple[Row, ...]
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rollout's, by channel."""
    agent_rewards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By agent, then by channel."""
    task_id: str = ""
    """The store's id of its task."""
    tampered: bool = False
    """Whether its verdict is `tampered`: its reward is 0, and nothing else of it was scored."""

    def reward_under(self, channel: str, setting: str) -> float:
        """The rollout's reward under a channel that a setting names; 0 if it was tampered with.

        Raises `TrainerError` if it has none: a missing reward is not 0.
        """
        if channel == "reward":
            return self.reward
        if channel not in self.rewards and not self.tampered:
            raise TrainerError(
                f"Rollout {self.rollout_id} has no reward under the channel {channel!r}, which {setting} "
                f"names; it has {', '.join(sorted(self.rewards)) or 'none'}. Correct the name, or give every "
                "rollout a reward there, 0 where none is earned, and begin again in another folder "
                "(--folder)."
            )
        return self.rewards.get(channel, 0.0)


class Estimator(Protocol):
    """Gives one group its advantages. It may have `channels`, those that its settings name
    (`trainers.advantages.channels`).
    """

    def __call__(self, group: Sequence[Scored], /) -> Advantages:
        """One entry per rollout, in their order. Calling it again with the same group and policy gives the
        same.
        """
        ...


@runtime_checkable
class OverBatch(Protocol):
    """An estimator that has to see all groups of a batch before any of their advantages are final."""

    def over_batch(self, groups: Sequence[Advantages]) -> list[Advantages]:
        """The final advantages of all groups of a batch, from what the estimator gave each of them."""
        ...


@dataclass(frozen=True, slots=True)
class OnRewards:
    """A pure function from a group's rewards, float [G], to its advantages, float64 [G], as an estimator."""

    function: Callable[[npt.ArrayLike], Float64Array]

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """The same advantage for all rows of a rollout."""
        values = self.function(np.array([item.reward for item in group]))
        return [[float(value)] * len(item.rows) for item, value in zip(group, values, strict=True)]


def make_estimator(
    config: RunConfig, store: "TraceStore | None" = None, trained_policy: "TrainedPolicy | None" = None
) -> Estimator:
    """The estimator that a run names. Raises `ConfigError` for settings that it does not have, or that do not
    fit the run.

    `store` and `trainee` are for estimators that have a class method `of_run`: they look up tasks, or ask the
    policy.
    """
    trainer = config.trainer
    found = load("advantage", trainer.advantage)
    settings = checked_settings(trainer.advantage, dict(trainer.advantage_settings), stream=trainer.stream)
    if settings is None:
        return OnRewards(found)
    of_run = getattr(found, "of_run", None)
    made: Estimator = found(settings) if of_run is None else of_run(settings, config, store, trained_policy)
    return made


def checked_settings(name: str, given: dict[str, object], *, stream: bool = False) -> Config | None:
    """An estimator's settings, None if it takes none.

    Raises `ConfigError` for settings that it does not have, and with `stream` for one that has to see the
    whole batch.
    """
    found = load("advantage", name)
    if stream and hasattr(found, "over_batch"):
        raise ConfigError(
            f"The advantages of {name!r} need the whole batch, and with trainer.stream gradients accumulate "
            "before it is there: set stream = false."
        )
    model: type[Config] | None = getattr(found, "Settings", None)
    if model is None:
        if given:
            raise ConfigError(
                f"[trainer.advantage_settings]: the advantage {name!r} has no settings, and got "
                f"{sorted(given)}."
            )
        return None
    return validate(model, given, "[trainer.advantage_settings]")
