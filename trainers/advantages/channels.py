"""Checks that the reward channels named in the settings occur in the run.

A call or an agent without a reward under a channel has 0 there, so a misspelt channel would be 0 forever.
After the run's first batches the named channels are looked up among all rewards so far. A rollout must have a
reward under every named channel (`Scored.reward_under`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from harnessgym.errors import ConfigError
from harnessgym.store import TraceStore, rewards
from harnessgym.store.rewards import RewardUnit

_BATCHES = 3
_WORDS: dict[RewardUnit, str] = {"rollout": "rollout", "turn": "call", "agent": "agent"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedChannel:
    """A channel that settings name."""

    setting: str
    """The setting that names it, dotted."""
    unit: RewardUnit
    """What receives its rewards."""
    channel: str
    zeros: bool = False
    """Whether a run may have no such reward: this is then logged, not an error."""


def channels_of(estimator: object) -> Sequence[NamedChannel]:
    """The channels that the settings of an estimator or algorithm name; empty if it has no `channels`."""
    return getattr(estimator, "channels", ())


def of_calls(setting: str, channel: str) -> tuple[NamedChannel, ...]:
    """The channel of calls' rewards; empty for "reward", because a rollout has that reward even if its calls
    have none.
    """
    return () if channel == "reward" else (NamedChannel(setting, "turn", channel),)


def due(step: int, steps: int) -> bool:
    """Whether channels are checked at this step of `steps`, counted from 1: once in a run, even if it
    restarts.
    """
    return step == min(_BATCHES, steps)


def check_channels(named: Sequence[NamedChannel], store: TraceStore, run_id: str) -> None:
    """Raises `ConfigError` for a channel under which the run has no reward so far; logs it if zeros are
    allowed.
    """
    for item in named:
        known = store.read(partial(rewards.channels, run_id=run_id, unit=item.unit))
        if item.channel in known:
            continue
        what = _WORDS.get(item.unit, item.unit)
        problem = (
            f"{item.setting} names the channel {item.channel!r}, and no {what} of the run has a reward under "
            f"it so far. Channels of {what}s that occur: {', '.join(known) or 'none'}."
        )
        if not item.zeros:
            raise ConfigError(
                f"{problem} It would always count as 0. Correct the name, or write a reward of 0 where none "
                "is earned, and start again in another folder (--folder)."
            )
        _log.warning("%s It counts as 0.", problem)
