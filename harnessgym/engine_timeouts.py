"""Time limits on a silent inference engine."""

from pydantic import Field

from harnessgym.config import Config


class EngineTimeouts(Config):
    """How long an engine may be silent. A call that reaches a limit continues on another engine.

    An engine that was silent gets no new calls until it has answered a health check and sampled one token.
    """

    first_token_s: float = Field(300.0, gt=0)
    """Seconds until the first token of an answer, including queueing and prefill. Also bounds an answer that
    is not streamed."""
    idle_s: float = Field(60.0, gt=0)
    """Seconds between two chunks of an answer that has begun."""
    probe_s: float = Field(5.0, gt=0)
    """An engine with calls that sends no token for this many seconds gets a health check, which has the same
    time to answer. After two failed checks the engine counts as dead, whatever the other two limits are."""


def timeouts_of(settings: EngineTimeouts) -> dict[str, float]:
    """The time limits of settings that may have other fields, by name."""
    return {name: getattr(settings, name) for name in EngineTimeouts.model_fields}
