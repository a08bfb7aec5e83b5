"""What a run does with its rollouts, in four words that name sections of its configuration.

`[generate]`: which task comes next, and how many rollouts of it. `[filter]`: what of them is trained on.
`[control]`: how long each may go on. `[replay]`: what is trained again. The rest of what decides which groups
are trained, and when, is `[trainer]`.
"""

from typing import Any, Literal

from pydantic import Field

from harnessgym.config import Config

DAPO = "dapo"
"""The selector that is a filter: tasks in turn, and groups without a signal are replaced."""


class GenerateSection(Config):
    """Which rollouts are generated."""

    selector: str = "uniform"
    """What chooses the next group's task and how many rollouts it has: a registered selector, or
    `module:Class`. `dapo` is uniform with `filter.zero_signal = "refill"`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that selector."""


class FilterSection(Config):
    """Which rollouts, and which steps of them, are trained on."""

    zero_signal: Literal["leave_out", "refill"] = "leave_out"
    """Groups that teach nothing, as the advantage estimator sees them: for most, those of equal rewards.
    leave_out: they count in the batch, their rows do not. refill: they are given up, and further groups
    fill the batch (DAPO's dynamic sampling)."""
    refill_batches: int = Field(3, ge=1)
    """With refill: how many batches' worth of groups one step may give up; beyond, they count in the
    batch."""
    steps_kept: float = Field(1.0, gt=0, le=1)
    """Share of a group's turns that is trained on, those in which the policy was least certain; the others
    have advantage zero. DART has 0.8."""


class ControlSection(Config):
    """How long rollouts go on."""

    length_cap: bool = False
    """Whether a training rollout gets no more model calls than the longest success of its task so far had
    (DART). Without any success, only the task's own limit counts."""


class ReplaySection(Config):
    """What is trained again."""

    reuse: int = Field(0, ge=0)
    """How many further times a group may be trained, while it is within η."""
    reuse_share: float = Field(0.5, gt=0, lt=1)
    """With reuse: the part of a batch that may be such groups."""
    success_pool: int = Field(0, ge=0)
    """How many further times a successful rollout may be trained, beside a group of its task that failed
    as a whole, while it is within η (DART); 0 for never."""
