"""The seam between stored rollouts and estimators.

An estimator takes one group and gives every row of every rollout its advantages. The baseline is over the
whole group, even if some of its tokens are not trained. A masked token (advantage zero) still counts in the
loss's denominators; a dropped rollout (None) does not.
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
"""Per rollout of a group, per row; None for a dropped rollout, which is left out of the step and its
means."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One rollout of a group with all its rewards. The rewards of calls are in the rows' turns."""

    rollout_id: str
    reward: float
    rows: tuple[Row, ...]
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rollout's rewards, by channel."""
    agent_rewards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By agent, then by channel."""
    task_id: str = ""
    """The task's id in the store."""
    tampered: bool = False
    """Whether its verdict is `tampered`: then its reward is 0 and it has no other scores."""

    def reward_under(self, channel: str, setting: str) -> float:
        """The rollout's reward under a channel that a setting names; 0 if it is `tampered`.

        Raises `TrainerError` if it has none: a missing reward is not 0.
        """
        if channel == "reward":
            return self.reward
        if channel not in self.rewards and not self.tampered:
            raise TrainerError(
                f"Rollout {self.rollout_id} has no reward under the channel {channel!r}, which {setting} "
                f"names; it has {', '.join(sorted(self.rewards)) or 'none'}. Correct the name, or give every "
                "rollout a reward under it, 0 where none is earned, and start again in another folder "
                "(--folder)."
            )
        return self.rewards.get(channel, 0.0)


class Estimator(Protocol):
    """Computes the advantages of a group. It may have `channels`, which its settings name
    (`trainers.advantages.channels`).
    """

    def __call__(self, group: Sequence[Scored], /) -> Advantages:
        """One entry per rollout, in their order. Deterministic, given the group and the policy."""
        ...


@runtime_checkable
class OverBatch(Protocol):
    """An estimator that needs all groups of a batch to compute the final advantages."""

    def over_batch(self, groups: Sequence[Advantages]) -> list[Advantages]:
        """The final advantages of all groups of a batch, from the estimator's advantages of each group."""
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

    `store` and `trained_policy` are for estimators with a class method `of_run`, which look up tasks or query
    the policy.
    """
    trainer = config.trainer
    estimator = load("advantage", trainer.advantage)
    settings = checked_settings(trainer.advantage, dict(trainer.advantage_settings), stream=trainer.stream)
    if settings is None:
        return OnRewards(estimator)
    of_run = getattr(estimator, "of_run", None)
    built: Estimator = (
        estimator(settings) if of_run is None else of_run(settings, config, store, trained_policy)
    )
    return built


def checked_settings(name: str, settings: dict[str, object], *, stream: bool = False) -> Config | None:
    """An estimator's settings; None if it has none.

    Raises `ConfigError` for settings that it does not have, and with `stream` for an estimator that needs the
    whole batch.
    """
    estimator = load("advantage", name)
    if stream and hasattr(estimator, "over_batch"):
        raise ConfigError(
            f"The advantages of {name!r} need the whole batch, and with trainer.stream gradients accumulate "
            "before it is there: set stream = false."
        )
    model: type[Config] | None = getattr(estimator, "Settings", None)
    if model is None:
        if settings:
            raise ConfigError(
                f"[trainer.advantage_settings]: the advantage {name!r} has no settings, and got "
                f"{sorted(settings)}."
            )
        return None
    return validate(model, settings, "[trainer.advantage_settings]")
