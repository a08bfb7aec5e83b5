"""Spans as exporters write them in JSON."""

import secrets
import time
from typing import Any


def span(
    name: str = "step",
    parent: "dict[str, Any] | None" = None,
    *,
    at: float | None = None,
    for_s: float = 0.001,
    **fields: Any,
) -> dict[str, Any]:
    """A span; its attributes as keywords with `__` for `.`, its other fields under their own names."""
    start = time.time() if at is None else at
    own = {key: fields.pop(key) for key in ("events", "links", "status") if key in fields}
    written = {
        "traceId": parent["traceId"] if parent else secrets.token_hex(16),
        "spanId": secrets.token_hex(8),
        "name": name,
        "startTimeUnixNano": str(int(start * 1e9)),
        "endTimeUnixNano": str(int((start + for_s) * 1e9)),
        "attributes": pairs({key.replace("__", "."): value for key, value in fields.items()}),
        **own,
    }
    return {**written, "parentSpanId": parent["spanId"]} if parent else written


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """Attributes of a span."""
    return [{"key": key, "value": value(given)} for key, given in attributes.items()]


def value(given: Any) -> dict[str, Any]:
    """A value of an attribute."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(item) for item in given]}}
    return {"stringValue": given}


def export(*spans: Any, resource: dict[str, Any] | None = None) -> dict[str, Any]:
    """An ExportTraceServiceRequest."""
    about = {"resource": {"attributes": pairs(resource)}} if resource else {}
    return {"resourceSpans": [{**about, "scopeSpans": [{"scope": {"name": "test"}, "spans": list(spans)}]}]}
