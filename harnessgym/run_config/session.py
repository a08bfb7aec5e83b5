"""Options of a session besides its sampling and limits."""

from typing import Literal

from harnessgym.config import Config
from harnessgym.harness import SideCallRule
from harnessgym.traces.contracts import Contract


class SessionOptions(Config):
    """How the proxy treats the calls of one session."""

    side_calls: tuple[SideCallRule, ...] = ()
    """Rules for calls in which the policy does not act. The first matching rule decides a call's kind."""
    constraints: Literal["refuse", "prompt"] = "refuse"
    """How to treat a call that demands JSON or a tool call. Sampling cannot be forced to give one without
    changing the distribution that is trained on. refuse: return the provider's error for a feature that a
    model lacks. prompt: put the demand into the system text and return whatever the policy answers. A demand
    for at most one tool call is never refused, because harnesses make it by default; `prompt` puts it into
    words too."""
    upstream: str | None = None
    """What answers the calls: a worker, or any worker of a kind. None: the policy's engines, never an outside
    model. `parked`: a client of the control routes."""
    replay: str | None = None
    """A rollout, or one session of it, whose recorded answers are replayed."""
    contracts: tuple[Contract, ...] = ()
    """What the session must not do; see `harnessgym.traces.contracts`. Once a contract that can be checked
    from calls and their tool calls is broken, or the next call would break it, further calls are refused."""
    answer_timeout_s: float = 600.0
    """Seconds that a parked call waits for its answer."""
