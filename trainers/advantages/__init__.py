"""Advantage estimators: pure functions from the rewards of one group, float [G], to its advantages, float64 [G]."""

ADVANTAGES = {
    "dr_grpo": "trainers.advantages.group_relative:dr_grpo",
    "grpo": "trainers.advantages.group_relative:grpo",
}
"""Name to `"module:function"`."""
