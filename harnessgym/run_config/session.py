"""What a session is opened with besides its sampling and limits."""

from typing import Literal

from harnessgym.config import Config
from harnessgym.harness import SideCallRule
from harnessgym.traces.contracts import Contract


class SessionOptions(Config):
    """How the proxy treats the calls of one session."""

    side_calls: tuple[SideCallRule, ...] = ()
    """Which calls are not the policy acting. The first rule that a call meets names its kind."""
    constraints: Literal["refuse", "prompt"] = "refuse"
    """What becomes of a call that demands JSON or a tool call, which the policy's sampling cannot be
    forced to give without changing the distribution it is trained on. refuse: the provider's own error for
    a feature a model lacks. prompt: the demand is put into the system text, and whatever the policy
    answers is returned. That at most one tool be called is never refused, because harnesses ask for it by
    default; it too is put in words under `prompt`."""
    upstream: str | None = None
    """Who answers: a worker, or any of a kind. None: the policy's engines, never an outside model.
    `parked`: whoever answers through the control routes."""
    replay: str | None = None
    """A rollout, or one session of it, whose recorded answers are given instead of new ones."""
    contracts: tuple[Contract, ...] = ()
    """What the session must not do; see `harnessgym.traces.contracts`. Once one of those that can be
    judged from its calls and their tool calls is broken, or the next call would break it, there is no next
    call."""
    answer_timeout_s: float = 600.0
    """How long a parked call waits for its answer."""
