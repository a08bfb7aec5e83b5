"""What a run does with its rollouts, in four words that name sections of its configuration.

`[generate]`: which task comes next, and how many rollouts of it. `[filter]`: what of them is trained on.
`[control]`: how long each may go on. `[replay]`: what is trained again. The rest of what decides which groups
are trained, and when, is `[trainer]`.
"""

from typing import Any, Literal

from pydantic import Field

from harnessgym.config import Config

DAPO = "dapo"
"""A selector that is really a filter: tasks come in turn, and groups without a signal are replaced."""


class GenerateSection(Config):
    """Which rollouts are generated."""

    selector: str = "uniform"
    """Chooses the task and the size of the next group: a registered selector, or `module:Class`. `dapo` is
    uniform with `filter.zero_signal = "refill"`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that selector."""


class FilterSection(Config):
    """Which rollouts, and which of their steps, are trained on."""

    zero_signal: Literal["leave_out", "refill"] = "leave_out"
    """What to do with groups without a signal for the advantage estimator: for most, groups of equal rewards.
    leave_out: they count towards the batch, but their rows are not trained. refill: they are given up, and
    further groups fill the batch (DAPO's dynamic sampling)."""
    refill_batches: int = Field(3, ge=1)
    """With refill: how many batches' worth of groups one step may give up. Further ones count towards the
    batch."""
    steps_kept: float = Field(1.0, gt=0, le=1)
    """Share of a group's turns that is trained on: those in which the policy was least certain. The others
    get advantage zero. DART uses 0.8."""


class ControlSection(Config):
    """Limits on the length of rollouts."""

    length_cap: bool = False
    """Whether to limit a training rollout to the model calls of its task's longest success so far (DART).
    Without a success, only the task's own limit counts."""


class ReplaySection(Config):
    """What is trained again."""

    reuse: int = Field(0, ge=0)
    """How many more times a group may be trained while it is within η."""
    reuse_share: float = Field(0.5, gt=0, lt=1)
    """With reuse: the largest share of replayed groups in a batch."""
    success_pool: int = Field(0, ge=0)
    """How many more times a successful rollout may be trained, beside a group of its task that failed as a
    whole, while it is within η (DART). 0 means never."""
