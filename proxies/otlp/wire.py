"""OTLP/HTTP on the wire: decodes requests to spans and encodes the protocol's responses.

Requests are JSON or protobuf, gzipped or not. Protobuf needs the package `opentelemetry-proto`
(`harnessgym-rl[otlp]`). Ids are hex in JSON, as OTLP requires, and bytes in protobuf. An unreadable span is
counted as rejected; the others are kept.

The protocol: https://opentelemetry.io/docs/specs/otlp/
"""

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from proxies.strict_json import loads_lenient


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time inside a span; OpenTelemetry calls it a span event."""

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
    """Id of the parent span, in the same trace."""
    name: str
    start: float
    """Unix seconds."""
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    moments: tuple[Moment, ...] = ()
    links: tuple[str, ...] = ()
    """Ids of the spans that it links to."""
    error: str | None = None
    """Message of an error status, perhaps empty; None if the status is no error."""

    def __post_init__(self) -> None:
        assert self.start <= self.end


Encoding = Literal["application/json", "application/x-protobuf"]
JSON: Encoding = "application/json"
PROTOBUF: Encoding = "application/x-protobuf"
_AGENT_OF_PROCESS = ("gen_ai.agent.name", "gen_ai.agent.id", "agent.name")
"""Resource attributes that are copied to all spans of the resource."""
_ERROR = 2
_INVALID_ARGUMENT = 3
_UNAUTHENTICATED = 16
_PERMISSION_DENIED = 7
_CODES = {
    400: _INVALID_ARGUMENT,
    401: _UNAUTHENTICATED,
    403: _PERMISSION_DENIED,
    413: _INVALID_ARGUMENT,
    415: _INVALID_ARGUMENT,
}


class WireProblem(Exception):
    """A request that is refused as a whole, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class OtlpExport:
    """The spans of one request."""

    spans: tuple[OtlpSpan, ...]
    rejected: int = 0
    """Number of spans that cannot be read."""
    reason: str = ""
    """What is wrong with the first of them."""


def encoding_of(content_type: str) -> Encoding:
    """The encoding of a request and of its response. Raises `WireProblem` for an unknown one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        return JSON
    if kind == PROTOBUF:
        return PROTOBUF
    raise WireProblem(
        415, f"Send OTLP/HTTP as {JSON} or {PROTOBUF}; the content type is {kind or 'missing'}."
    )


def unpacked(body: bytes, content_encoding: str, limit: int) -> bytes:
    """Decompress a body. Raises `WireProblem` for unknown or broken compression and above `limit` bytes."""
    kind = content_encoding.strip().lower()
    if kind in ("", "identity"):
        return body
    if kind != "gzip":
        raise WireProblem(415, f"The content encoding {kind!r} is not supported: send gzip or none.")
    # One byte more than the limit is enough to know: a gzip bomb is never inflated whole.
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise WireProblem(400, f"The body is not gzip: {error}.") from None
    if len(data) > limit:
        raise WireProblem(413, f"The unpacked body has more than {limit:,} bytes.")
    if not inflate.eof:
        raise WireProblem(400, "The gzip body ends too early.")
    return data


def decode(data: bytes, encoding: Encoding) -> OtlpExport:
    """Decode the spans of a request. Raises `WireProblem` if it is not an ExportTraceServiceRequest."""
    try:
        request = _Request.model_validate(_from_json(data) if encoding == JSON else _from_protobuf(data))
    except ValidationError as error:
        raise WireProblem(400, f"This is not an ExportTraceServiceRequest: {_first(error)}") from None
    spans: list[OtlpSpan] = []
    rejected = 0
    reason = ""
    for resource, written in _each(request):
        try:
            spans.append(_Span.model_validate(written).span(resource))
        except (ValidationError, ValueError) as error:
            rejected += 1
            reason = reason or (_first(error) if isinstance(error, ValidationError) else str(error))
    return OtlpExport(tuple(spans), rejected, reason)


def success(encoding: Encoding, rejected: int = 0, reason: str = "") -> bytes:
    """An ExportTraceServiceResponse: empty, or a partial success with the number of rejected spans."""
    if encoding == JSON:
        return json.dumps(
            {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": reason}} if rejected else {}
        ).encode()
    if not rejected:
        return b""
    return _field(1, b"\x08" + _varint(rejected) + _field(2, reason.encode()))


def failure(encoding: Encoding, status: int, message: str) -> bytes:
    """A google.rpc.Status."""
    code = _CODES.get(status, 2)
    if encoding == JSON:
        return json.dumps({"code": code, "message": message}).encode()
    return b"\x08" + _varint(code) + _field(2, message.encode())


class _Read(BaseModel):
    """Base of the request's models: camelCase names; unknown fields are ignored, as OTLP requires."""

    model_config = ConfigDict(alias_generator=to_camel)


class _AnyValue(_Read):
    """An attribute's value: at most one of these fields is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    bytes_value: str | None = None
    array_value: "_Values | None" = None
    kvlist_value: "_Pairs | None" = None

    def plain(self) -> Any:
        """The value as a plain Python value."""
        if self.array_value is not None:
            return [value.plain() for value in self.array_value.values]
        if self.kvlist_value is not None:
            return _plain(self.kvlist_value.values)
        other_scalars = (self.bool_value, self.int_value, self.double_value, self.bytes_value)
        scalar = (
            self.string_value
            if self.string_value is not None
            else next((value for value in other_scalars if value is not None), None)
        )
        # The store keeps JSON in PostgreSQL, which takes neither NaN and infinities nor NUL characters.
        if isinstance(scalar, float) and not math.isfinite(scalar):
            return str(scalar)
        return scalar.replace("\0", "\ufffd") if isinstance(scalar, str) else scalar


class _Pair(_Read):
    key: str
    value: _AnyValue | None = None


class _Values(_Read):
    values: list[_AnyValue] = []


class _Pairs(_Read):
    values: list[_Pair] = []


def _plain(pairs: list[_Pair]) -> dict[str, Any]:
    return {
        pair.key.replace("\0", "\ufffd"): None if pair.value is None else pair.value.plain() for pair in pairs
    }


_TraceId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$", to_lower=True)]
_SpanId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$", to_lower=True)]
_Nanos = Annotated[int, Field(ge=0, le=2**63)]


class _Event(_Read):
    name: str = ""
    time_unix_nano: _Nanos = 0
    attributes: list[_Pair] = []


class _Link(_Read):
    span_id: _SpanId


class _Status(_Read):
    code: int = 0
    message: str = ""


class _Span(_Read):
    trace_id: _TraceId
    span_id: _SpanId
    parent_span_id: _SpanId | Literal[""] | None = None
    name: str = ""
    start_time_unix_nano: _Nanos
    end_time_unix_nano: _Nanos
    attributes: list[_Pair] = []
    events: list[_Event] = []
    links: list[_Link] = []
    status: _Status | None = None

    def span(self, resource: Mapping[str, Any]) -> OtlpSpan:
        """Convert to an `OtlpSpan`. Raises `ValueError` for missing times and ids of zeros."""
        if not int(self.trace_id, 16) or not int(self.span_id, 16):
            raise ValueError(f"span {self.name!r} has an id of zeros")
        if not 0 < self.start_time_unix_nano <= self.end_time_unix_nano:
            raise ValueError(f"span {self.name!r} has no time, or ends before it starts")
        status = self.status or _Status()
        return OtlpSpan(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_span_id or None,
            name=self.name.replace("\0", "\ufffd"),
            start=self.start_time_unix_nano / 1e9,
            end=self.end_time_unix_nano / 1e9,
            attributes={**resource, **_plain(self.attributes)},
            moments=tuple(
                Moment(
                    event.name,
                    (event.time_unix_nano or self.end_time_unix_nano) / 1e9,
                    _plain(event.attributes),
                )
                for event in self.events
            ),
            links=tuple(link.span_id for link in self.links),
            error=status.message if status.code == _ERROR else None,
        )


class _Resource(_Read):
    attributes: list[_Pair] = []


class _ScopeSpans(_Read):
    spans: list[Any] = []


class _ResourceSpans(_Read):
    resource: _Resource = _Resource()
    scope_spans: list[_ScopeSpans] = []


class _Request(_Read):
    resource_spans: list[_ResourceSpans] = []


def _each(request: _Request) -> Iterator[tuple[Mapping[str, Any], Any]]:
    for resource_spans in request.resource_spans:
        attributes = _plain(resource_spans.resource.attributes)
        resource = {name: attributes[name] for name in _AGENT_OF_PROCESS if name in attributes}
        for scope in resource_spans.scope_spans:
            for written in scope.spans:
                yield resource, written


def _from_json(data: bytes) -> Any:
    try:
        return loads_lenient(data.decode())
    except ValueError as error:
        raise WireProblem(400, f"The body is not JSON: {error}.") from None


def _from_protobuf(data: bytes) -> Any:
    """A protobuf request as the value that its JSON encoding would have."""
    try:
        protobuf: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        form: Any = import_module("google.protobuf.json_format")
        problem: Any = import_module("google.protobuf.message")
    except ImportError:
        how = "Install harnessgym-rl[otlp] beside the proxy, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/json."
        raise WireProblem(
            415, f"This proxy reads protobuf only with the package opentelemetry-proto. {how}"
        ) from None
    try:
        message = protobuf.ExportTraceServiceRequest.FromString(data)
    except problem.DecodeError as error:
        raise WireProblem(400, f"The body is not protobuf: {error}.") from None
    request = form.MessageToDict(message, use_integers_for_enums=True)
    # Protobuf's own JSON form writes bytes as base64, but OTLP's JSON writes ids as hex.
    for resource_spans in request.get("resourceSpans", ()):
        for scope in resource_spans.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for named in (span, *span.get("links", ())):
                    named.update(
                        {
                            name: _hex(named[name])
                            for name in ("traceId", "spanId", "parentSpanId")
                            if name in named
                        }
                    )
    return request


def _hex(written: str) -> str:
    return base64.b64decode(written).hex()


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    # Written by hand, so that answers in protobuf do not need the protobuf package.
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _first(error: ValidationError) -> str:
    first_error = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first_error['loc']))}: {first_error['msg']}"
