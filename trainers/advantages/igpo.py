"""IGPO: every turn is rewarded with what it added to the policy's probability of the right answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.run_config.run import RunConfig
from trainers.advantages.estimator import Advantages, Float64Array, Scored
from trainers.advantages.information_gain import Gains, InformationGain
from trainers.advantages.steps import branches, by_call, discounted, spread, standardised
from trainers.algorithms import AlgorithmRow

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from trainers.trained_policy import TrainedPolicy

IGPO = AlgorithmRow(
    "advantage", "igpo",
    "r_t = p(gold | what was seen after turn t) - p(gold | after turn t - 1), p the geometric mean over "
    "gold's tokens; r_T the "
    "rollout's reward; a = (r - mean(r)) / (std(r) + 1e-6) over all turns of the group; A_t = sum_(k >= t) "
    "gamma^(k - t) a_k",
    "arXiv 2510.14967", "third party", "transcription in loops, float64; p against a forward of the whole "
                                       "text",
)  # fmt: skip
_EPS = 1e-6


class IgpoSettings(Config):
    """Where the right answer is, and how gains and rewards are joined."""

    gold: str = "answer"
    """Key of the task's metadata that has the right answer, as text."""
    before: str = ""
    """Text that the answer is scored behind, after the prompt of the turn: what the policy says before it
    answers."""
    normalise: Literal["joint", "separate"] = "joint"
    """joint: gains and rewards together, as in the paper. separate: each by themselves."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount of later turns' rewards."""


class Igpo:
    """IGPO (arXiv 2510.14967, of which an account was read). `gains` says what each call of a branch added.

    A turn's gain is known at the start of the next one, so the last turn of a branch has none; it has the
    rollout's reward. A call that several branches share counts once in mean and deviation, with the mean of
    its gains, and has the mean of its branches' advantages.
    """

    Settings = IgpoSettings

    def __init__(self, settings: IgpoSettings, gains: Gains) -> None:
        self.settings = settings
        self._gains = gains

    @classmethod
    def of_run(
        cls,
        settings: IgpoSettings,
        config: RunConfig,
        store: "TraceStore | None",
        trainee: "TrainedPolicy | None",
    ) -> "Igpo":
        """With gains that the policy under training sees. Raises `ConfigError` without a store and a
        trainee.
        """
        return cls(settings, InformationGain.of_run(settings.gold, settings.before, config, store, trainee))

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """One advantage per call."""
        gained: dict[str, float] = {}
        for item, gains in zip(group, self._gains(group), strict=True):
            gained |= by_call([turns[:-1] for turns in branches(item.rows)], gains)
        given = (
            np.array(list(gained.values()), dtype=np.float64),
            np.array([item.reward for item in group], dtype=np.float64),
        )
        per_call, outcomes = self._normalised(*given)
        scores = dict(zip(gained, per_call.tolist(), strict=True))
        out: Advantages = []
        for item, outcome in zip(group, outcomes, strict=True):
            per_branch = branches(item.rows)
            rewards = [
                np.array([*(scores[turn.call_id] for turn in turns[:-1]), outcome]) for turns in per_branch
            ]
            returns = [discounted(own, self.settings.gamma) for own in rewards]
            out.append(spread(item.rows, by_call(per_branch, returns)))
        return out

    def _normalised(self, gains: Float64Array, outcomes: Float64Array) -> tuple[Float64Array, Float64Array]:
        if self.settings.normalise == "separate":
            return standardised(gains, _EPS), standardised(outcomes, _EPS)
        both = standardised(np.concatenate([gains, outcomes]), _EPS)
        return both[: len(gains)], both[len(gains) :]
