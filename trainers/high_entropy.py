"""High-entropy steps: of a group's turns only the least certain are trained on (DART; known from third-party
notes).

The entropy of a turn is estimated as the mean of -log mu over the tokens that the policy sampled in it.
Tokens of the turns that are left out get the advantage zero: they have no gradient, and every denominator
stays what it was.
"""

from collections.abc import Sequence

import numpy as np

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.advantages.estimator import Advantages


def turn_entropies(row: Row) -> list[float | None]:
    """Of each turn of a row, nats per token; None where no token of it is trained."""
    out: list[float | None] = []
    for turn in row.turns:
        sampled = row.mask[turn.start : turn.end] == 1
        out.append(float(-row.logprobs[turn.start : turn.end][sampled].mean()) if sampled.any() else None)
    return out


def surest_masked(rows: Sequence[Sequence[Row]], advantages: Advantages, share: float) -> Advantages:
    """A group's advantages, zero in the turns that are left out. Turns of dropped rollouts are none of
    those compared.
    """
    taught = [row for own, given in zip(rows, advantages, strict=True) if given is not None for row in own]
    kept = iter(kept_turns(taught, share))
    return [
        given and [np.asarray(value, dtype=np.float32) * next(kept) for value in given]
        for given in advantages
    ]


def kept_turns(rows: Sequence[Row], share: float) -> list[FloatArray]:
    """Per row of a group, float32 [T]: 1, and 0 in turns whose entropy is below the (1 - share) quantile
    of all turns'.
    """
    entropies = [turn_entropies(row) for row in rows]
    known = [value for found in entropies for value in found if value is not None]
    least = float(np.quantile(known, 1 - share)) if known else 0.0
    out = []
    for row, found in zip(rows, entropies, strict=True):
        kept = np.ones(len(row.ids), dtype=np.float32)
        for turn, value in zip(row.turns, found, strict=True):
            if value is not None and value < least:
                kept[turn.start : turn.end] = 0.0
        out.append(kept)
    return out
