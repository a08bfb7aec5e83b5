"""UI-S1: the advantage of the whole episode plus the advantage of each step among the group's t-th steps."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from trainers.advantages.channels import of_calls
from trainers.advantages.estimator import Advantages, Scored
from trainers.advantages.steps import branches, by_call, discounted, spread, standardised, step_rewards
from trainers.algorithms import AlgorithmRow

UI_S1 = AlgorithmRow(
    "advantage", "ui_s1",
    "A = a(r) + w a(R_t), a(x) = (x - mean(x)) / (std(x) + 1e-6): the rollouts' rewards r in the group, and "
    "the discounted returns R_t of step rewards among all t-th steps",
    "arXiv 2509.11543, a copy of the authors' core_uis1.py", "source",
    "transcription in loops, float64, with what is left out left out there too",
    left_out="the authors' returns begin anew at a step that was missed, so that nothing comes back through "
             "it; their standard "
    "deviation has ddof 1, here 0; and they count a rollout once per step in the mean of the episodes' "
    "rewards, here once.",
)  # fmt: skip
_EPS = 1e-6


class UiS1Settings(Config):
    """The weights of the two parts."""

    step_weight: float = 1.0
    """w."""
    gamma: float = Field(0.5, ge=0, le=1)
    """Discount of later steps' rewards."""
    channel: str = "reward"
    """Channel of the calls' rewards, which are the step rewards."""


class UiS1:
    """The advantage of UI-S1 (arXiv 2509.11543), without its patching of missed steps by an expert's.

    `UI_S1.left_out` lists the differences from the authors' code.
    """

    Settings = UiS1Settings

    def __init__(self, settings: UiS1Settings) -> None:
        self.settings = settings
        self.channels = of_calls("trainer.advantage_settings.channel", settings.channel)

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """One advantage per call."""
        returns: dict[str, float] = {}
        steps = defaultdict[int, dict[str, None]](dict)
        for item in group:
            rewards = step_rewards(item, self.settings.channel, outcome=False)
            returns |= by_call(branches(item.rows), [discounted(own, self.settings.gamma) for own in rewards])
            for turns in branches(item.rows):
                for step, turn in enumerate(turns):
                    steps[step][turn.call_id] = None
        scores: dict[str, float] = {}
        for calls in steps.values():
            step_advantages = standardised(np.array([returns[call] for call in calls]), _EPS)
            scores |= dict(zip(calls, (self.settings.step_weight * step_advantages).tolist(), strict=True))
        episodes = standardised(np.array([item.reward for item in group]), _EPS)
        return [
            spread(
                item.rows,
                {
                    turn.call_id: float(own) + scores[turn.call_id]
                    for turns in branches(item.rows)
                    for turn in turns
                },
            )
            for item, own in zip(group, episodes, strict=True)
        ]
