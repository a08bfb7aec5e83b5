"""How long an inference engine may be silent before it is given up."""

from pydantic import Field

from harnessgym.config import Config


class EngineTimeouts(Config):
    """Limits on the silence of an engine. A call that runs into one goes on at another engine, from the
    tokens so far.

    An engine that was silent gets no new calls until it has answered its health check and given one token.
    """

    first_token_s: float = Field(300.0, gt=0)
    """Seconds until the first token of an answer, queueing and prefill included. Bounds an answer that
    comes whole, too."""
    idle_s: float = Field(60.0, gt=0)
    """Seconds between two pieces of an answer that has begun."""
    probe_s: float = Field(5.0, gt=0)
    """An engine that has calls and gives no token for so many seconds is asked for its health. It has as
    long to answer, twice; then it is taken for dead, whatever the other two limits are."""


def timeouts_of(settings: EngineTimeouts) -> dict[str, float]:
    """The limits alone, by name: of settings that have others besides."""
    return {name: getattr(settings, name) for name in EngineTimeouts.model_fields}
