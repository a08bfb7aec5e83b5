"""Channels of calls' and agents' rewards that settings name and under which nobody gives one.

A call or an agent without a reward under a channel earned 0 there, so a channel that is written wrongly would
be zeros for ever. Once the run has had its first batches, what settings name is looked up among all rewards
that were given by then. A rollout must have a reward under every channel that settings name
(`Scored.reward_under`).
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
    """Which, dotted."""
    unit: RewardUnit
    """What its rewards are given to."""
    channel: str
    zeros: bool = False
    """Whether a run without any such reward may be meant: that is told, not refused."""


def channels_of(estimator: object) -> Sequence[NamedChannel]:
    """Those that the settings of an estimator or an algorithm name, if it says so."""
    return getattr(estimator, "channels", ())


def of_calls(setting: str, channel: str) -> tuple[NamedChannel, ...]:
    """The channel of rewards of calls. Where it is "reward" calls may well have none: the rollout's own is
    there.
    """
    return () if channel == "reward" else (NamedChannel(setting, "turn", channel),)


def due(step: int, steps: int) -> bool:
    """Whether channels are looked up at this step, counted from 1, of so many: once in a run, however
    often it is restarted.
    """
    return step == min(_BATCHES, steps)


def check_channels(named: Sequence[NamedChannel], store: TraceStore, run_id: str) -> None:
    """Raises `ConfigError` for a channel under which the run has no reward so far; where zeros may be
    meant, it is logged.
    """
    for item in named:
        found = store.read(partial(rewards.channels, run_id=run_id, unit=item.unit))
        if item.channel in found:
            continue
        what = _WORDS.get(item.unit, item.unit)
        said = (
            f"{item.setting} names the channel {item.channel!r}, and no {what} of the run has a reward under "
            f"it so far. Channels of {what}s that occur: {', '.join(found) or 'none'}."
        )
        if not item.zeros:
            raise ConfigError(
                f"{said} It would count as 0 for ever: correct the name, or give a reward of 0 where none is "
                "earned, and begin again in another folder (--folder)."
            )
        _log.warning("%s It counts as 0.", said)
