"""Spans of `two_agents.py`, by OpenTelemetry's conventions for generative AI, sent over OTLP/HTTP.

With the `opentelemetry-sdk` and its exporter if they are installed, else by a few lines of JSON: it is an
open protocol. Spans go to `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, else to `/traces` beside the model's routes.
"""

import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol


class Span(Protocol):
    """Something that takes time."""

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more about it."""

    def happened(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Say what happened meanwhile."""

    def end(self, error: str | None = None) -> None:
        """It is over."""


class Spans(Protocol):
    """Where spans come from."""

    def start(self, name: str, parent: Any, attributes: Mapping[str, Any]) -> Any:
        """A span begins, inside another or by itself."""

    def close(self) -> None:
        """Send what is left."""


def spans(kind: str = "auto") -> Spans:
    """`sdk`, `json`, or what is installed. Without an endpoint nothing is sent."""
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = os.environ.get("OPENAI_BASE_URL")
    endpoint = endpoint or (f"{base.rstrip('/')}/traces" if base else "")
    headers = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    installed = (
        find_spec("opentelemetry") and find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter")
    )
    if kind == "sdk" or (kind == "auto" and installed and endpoint):
        return SdkSpans(endpoint, headers)
    return JsonSpans(endpoint, headers)


class SdkSpans:
    """Spans of the OpenTelemetry SDK."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider()
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, headers=dict(headers)))
        )
        self._tracer = self._provider.get_tracer("two_agents")

    def start(self, name: str, parent: "SdkSpan | None", attributes: Mapping[str, Any]) -> "SdkSpan":
        """A span begins."""
        from opentelemetry.trace import set_span_in_context

        context = None if parent is None else set_span_in_context(parent.span)
        return SdkSpan(self._tracer.start_span(name, context=context, attributes=dict(attributes)))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class SdkSpan:
    """One of them."""

    def __init__(self, span: Any) -> None:
        self.span = span

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more about it."""
        self.span.set_attributes(dict(attributes))

    def happened(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Say what happened meanwhile."""
        self.span.add_event(name, dict(attributes))

    def end(self, error: str | None = None) -> None:
        """It is over."""
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end()


class JsonSpans:
    """The same without the SDK."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._endpoint, self._headers = endpoint, headers
        self._ended: list[dict[str, Any]] = []

    def start(self, name: str, parent: "JsonSpan | None", attributes: Mapping[str, Any]) -> "JsonSpan":
        """A span begins."""
        trace = secrets.token_hex(16) if parent is None else parent.written["traceId"]
        above = {} if parent is None else {"parentSpanId": parent.written["spanId"]}
        written = {
            "traceId": trace,
            "spanId": secrets.token_hex(8),
            **above,
            "name": name,
            "startTimeUnixNano": str(time.time_ns()),
        }
        return JsonSpan({**written, "attributes": _pairs(attributes), "events": []}, self._ended)

    def close(self) -> None:
        """Send all of them."""
        if not self._endpoint or not self._ended:
            return
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": self._ended}]}]}).encode()
        headers = {"content-type": "application/json", **self._headers}
        try:
            request = urllib.request.Request(self._endpoint, body, headers)  # noqa: S310 - whoever starts us names it
            with urllib.request.urlopen(request, timeout=10):  # noqa: S310
                pass
        except urllib.error.URLError as error:
            print(f"the spans were not taken: {error}")


class JsonSpan:
    """One of them."""

    def __init__(self, written: dict[str, Any], ended: list[dict[str, Any]]) -> None:
        self.written, self._ended = written, ended

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Say more about it."""
        self.written["attributes"] += _pairs(attributes)

    def happened(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Say what happened meanwhile."""
        moment = {"name": name, "timeUnixNano": str(time.time_ns()), "attributes": _pairs(attributes)}
        self.written["events"].append(moment)

    def end(self, error: str | None = None) -> None:
        """It is over."""
        self.written |= {"endTimeUnixNano": str(time.time_ns())}
        self.written |= {} if error is None else {"status": {"code": 2, "message": error}}
        self._ended.append(self.written)


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    def value(given: Any) -> dict[str, Any]:
        return {"boolValue": given} if isinstance(given, bool) else {"stringValue": str(given)}

    return [{"key": name, "value": value(given)} for name, given in attributes.items()]
