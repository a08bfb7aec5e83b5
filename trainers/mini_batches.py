"""The parts of a batch, each of which is an optimizer step of its own."""

from collections.abc import Iterator, Sequence

import numpy as np

from harnessgym.traces.trajectories import Row
from trainers.update_settings import UpdateSettings


def mini_batches(rows: Sequence[Row], settings: UpdateSettings, seed: Sequence[int]) -> Iterator[list[int]]:
    """Indices of rows for each optimizer step: in each epoch all rollouts in a new random order, cut into
    mini-batches. Rollouts without a trained token are left out. Deterministic, given `seed`.
    """
    of_rollout: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        of_rollout.setdefault(row.rollout_id, []).append(at)
    rollouts = [own for own in of_rollout.values() if any(rows[at].mask.any() for at in own)]
    for epoch in range(settings.epochs):
        order = np.random.default_rng([*seed, epoch]).permutation(len(rollouts))
        for part in np.array_split(order, settings.mini_batches):
            if len(part):
                yield sorted(at for number in part for at in rollouts[number])


def means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the steps on a batch."""
    return {name: float(np.mean([step[name] for step in steps])) for name in (steps[0] if steps else ())}
