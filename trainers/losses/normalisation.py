"""How much each token counts in a batch's loss.

Denominators count tokens or rollouts, never rows: a rollout that is split into several rows with disjoint
masks keeps its weight. Corrections are applied later and do not change these weights.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.algorithms import AlgorithmRow

CONSTANT = AlgorithmRow(
    "loss", "normalisation = constant", "sum of the tokens' losses / (R length): Dr. GRPO's mean, for any "
                                        "loss",
    "arXiv 2503.20783", "source",
    'TRL 1.16 `GRPOTrainer`, `loss_type = "dr_grpo"`; our weights are float32', "constant",
    'Dr. GRPO is this with advantage = "dr_grpo" and loss = "ppo"; none of the three brings the others.',
)  # fmt: skip


class Constant(Config):
    """Dr. GRPO's denominator, which does not depend on the rollouts' lengths."""

    name: Literal["constant"] = "constant"
    length: int = Field(gt=0)
    """Tokens by which each rollout's sum is divided: the maximum that a rollout may have."""


Normalisation = Literal["token", "rollout"] | Constant


def token_weights(
    rows: Sequence[Row], normalisation: Normalisation, total: int | None = None
) -> list[FloatArray]:
    """Weight of each token, float32 [T] per row, 0 where the mask is 0.

    "token": one over the batch's trained tokens (DAPO): long rollouts weigh more.
    "rollout": one over (rollouts in the batch x trained tokens of its rollout) (GRPO): each rollout weighs
    the same. Constant: one over (rollouts in the batch x length) (Dr. GRPO): long rollouts weigh more,
    whatever the others' lengths.

    `total` is the whole batch's `denominator` if `rows` are a part of it; all rows of a rollout must be in
    the same part.
    """
    trained = _trained(rows)
    whole = max(denominator(rows, normalisation), 1) if total is None else total

    def share(row: Row) -> float:
        if isinstance(normalisation, Constant):
            return 1 / (whole * normalisation.length)
        return 1 / whole if normalisation == "token" else 1 / (whole * max(trained[row.rollout_id], 1))

    return [(row.mask != 0).astype(np.float32) * np.float32(share(row)) for row in rows]


def denominator(rows: Sequence[Row], normalisation: Normalisation) -> int:
    """The number of trained tokens, or of rollouts, by which sums over these rows are divided.

    The denominators of a batch's parts add up to the batch's.
    """
    trained = _trained(rows)
    return sum(trained.values()) if normalisation == "token" else len(trained)


def _trained(rows: Sequence[Row]) -> Counter[str]:
    """Trained tokens by rollout."""
    trained: Counter[str] = Counter()
    for row in rows:
        trained[row.rollout_id] += int(np.count_nonzero(row.mask))
    return trained
