"""A span as OpenTelemetry exporters send it, whatever the encoding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened inside a span; OpenTelemetry calls it a span event."""

    name: str
    t: float
    """Unix seconds."""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtlpSpan:
    """One finished span."""

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    """Span of the same trace in which it happened."""
    name: str
    start: float
    """Unix seconds."""
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Plain values and lists of them."""
    moments: tuple[Moment, ...] = ()
    links: tuple[str, ...] = ()
    """Ids of spans that it follows from."""
    error: str | None = None
    """What its status says, if that is an error; empty if it says no more."""

    def __post_init__(self) -> None:
        assert self.start <= self.end
