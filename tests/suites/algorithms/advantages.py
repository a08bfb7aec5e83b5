"""References for advantages: TRL's own code where TRL has it, else the formula written down a second time, another way."""

from collections.abc import Callable

import numpy as np
import torch
from trl.trainer.utils import nanstd

from trainers.advantages.group_relative import dr_grpo, grpo

GROUPS = [(size, seed) for size in (2, 3, 5, 8) for seed in range(25)]


def rewards_of(size: int, seed: int) -> np.ndarray:
    """A group's rewards: half of the groups have binary ones."""
    random = np.random.default_rng([size, seed])
    return random.integers(0, 2, size).astype(float) if seed % 2 else random.normal(size=size)


def difference(ours: Callable[[np.ndarray], np.ndarray], reference: Callable[[np.ndarray], np.ndarray]) -> float:
    """The greatest, over all groups."""
    return max(float(np.abs(ours(rewards) - reference(rewards)).max()) for rewards in (rewards_of(*group) for group in GROUPS))


def trl_grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPOTrainer, `scale_rewards = "group"`, with our standard deviation (ddof 0) in place of TRL's (ddof 1)."""
    grouped = torch.from_numpy(rewards).view(-1, len(rewards))
    std = nanstd(grouped, dim=1) * np.sqrt((len(rewards) - 1) / len(rewards))
    return ((grouped - grouped.nanmean(dim=1, keepdim=True)) / (std[:, None] + 1e-4))[0].numpy()


def trl_dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPOTrainer, `scale_rewards = "none"`."""
    grouped = torch.from_numpy(rewards).view(-1, len(rewards))
    return (grouped - grouped.nanmean(dim=1, keepdim=True))[0].numpy()


MEASURES = {
    ("advantage", "grpo"): lambda: difference(grpo, trl_grpo),
    ("advantage", "dr_grpo"): lambda: difference(dr_grpo, trl_dr_grpo),
}
