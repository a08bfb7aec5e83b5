"""What a session is opened with besides its sampling and limits."""

from typing import Literal

from harnessgym.config import Config
from harnessgym.harness import SideCallRule


class SessionOptions(Config):
    """How the proxy treats the calls of one session."""

    side_calls: tuple[SideCallRule, ...] = ()
    """Which calls are not the policy acting. The first rule that a call meets names its kind."""
    constraints: Literal["refuse", "prompt"] = "refuse"
    """What becomes of a call that demands JSON or a tool call, which the policy's sampling cannot be forced to give without
    changing the distribution it is trained on. refuse: the provider's own error for a feature a model lacks. prompt: the demand
    is put into the system text, and whatever the policy answers is returned."""
    upstream: str | None = None
    """Who answers: a worker, or any of a kind. None: the policy's engines, never an outside model. `parked`: whoever answers
    through the control routes."""
    answer_timeout_s: float = 600.0
    """How long a parked call waits for its answer."""
