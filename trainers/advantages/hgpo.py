"""HGPO: compares every step with all steps of its group that were taken in the same state."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from trainers.advantages.channels import of_calls
from trainers.advantages.estimator import Advantages, Scored
from trainers.advantages.steps import branches, by_call, discounted, spread, standardised, step_rewards
from trainers.algorithms import AlgorithmRow

HGPO = AlgorithmRow(
    "advantage", "hgpo",
    "steps of a group that share their last k states, k = 1 .. H + 1, are a set; a_k = (R - mean(R)) / "
    "(std(R) + 1e-6) in it, R the discounted return; A = sum_k L_k^alpha a_k / (sum_k L_k^alpha + 1e-6), L_k "
    "= k + 1, over the k with a_k != 0",
    "arXiv 2602.22817, verl-agent recipe/hgpo", "source", "transcription of the recipe in loops, float64",
)  # fmt: skip
_EPS = 1e-6
_ROUNDING = 1e-9


class HgpoSettings(Config):
    """How states are compared."""

    history: int = Field(2, ge=0)
    """H: how many states before the current one may have to agree too."""
    alpha: float = 1.0
    """How much more longer common histories count."""
    gamma: float = Field(0.95, ge=0, le=1)
    """Discount of later steps' rewards."""
    channel: str = "reward"
    """Channel of the calls' rewards. The last step also gets the rollout's reward."""


class Hgpo:
    """HGPO (arXiv 2602.22817, verl-agent recipe/hgpo). States are the turns' `state_key`.

    A call that several branches share is one step; its return is the mean over the branches. Levels at which
    all returns are equal have no weight, as in the recipe.
    """

    Settings = HgpoSettings

    def __init__(self, settings: HgpoSettings) -> None:
        self.settings = settings
        self.channels = of_calls("trainer.advantage_settings.channel", settings.channel)

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """One advantage per call."""
        returns: dict[str, float] = {}
        sets: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        for item in group:
            rewards = step_rewards(item, self.settings.channel, outcome=True)
            returns |= by_call(branches(item.rows), [discounted(own, self.settings.gamma) for own in rewards])
            for turns in branches(item.rows):
                states = tuple(turn.state_key for turn in turns)
                for at, turn in enumerate(turns, 1):
                    for k in range(1, min(self.settings.history + 1, at) + 1):
                        sets[states[at - k : at]][turn.call_id] = None
        sums = defaultdict[str, float](float)
        weights = defaultdict[str, float](float)
        for states, calls in sets.items():
            scores = standardised(np.array([returns[call] for call in calls]), _EPS)
            weight = (len(states) + 1) ** self.settings.alpha
            for call, score in zip(calls, scores, strict=True):
                # A return that equals the mean scores 0 or a rounding error, depending on the order of
                # summation. Both count as 0, or the level's weight would depend on that order.
                if abs(score) > _ROUNDING:
                    sums[call] += weight * float(score)
                    weights[call] += weight
        advantages = {call: sums[call] / (weights[call] + _EPS) for call in returns}
        return [spread(item.rows, advantages) for item in group]
