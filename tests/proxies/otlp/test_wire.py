"""OTLP/HTTP encodings: JSON and protobuf say the same, and garbage of either is refused without a crash."""

import contextlib
import gzip
import json
import subprocess
import sys

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from proxies.otlp.wire import JSON, PROTOBUF, WireProblem, decode, encoding_of, failure, success, unpacked
from tests.proxies.otlp_talk import export, pairs, span

WHOLE = span(
    "chat m",
    at=1000.5,
    for_s=2.0,
    gen_ai__response__id="chatcmpl-1",
    count=3,
    ratio=0.5,
    yes=True,
    several=["a", 2],
    events=[{"name": "approval", "timeUnixNano": "1001000000000", "attributes": pairs({"by": "ann"})}],
    links=[{"traceId": "ab" * 16, "spanId": "cd" * 8}],
    status={"code": 2, "message": "refused"},
)


def binary(request):
    """The same request in protobuf, whose JSON form has base64 ids."""
    import base64

    def ids(named):
        return {
            key: base64.b64encode(bytes.fromhex(text)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else text
            for key, text in named.items()
        }

    spans = [
        {**ids(item), "links": [ids(link) for link in item.get("links", [])]}
        for item in request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    again = {"resourceSpans": [{**request["resourceSpans"][0], "scopeSpans": [{"spans": spans}]}]}
    return ParseDict(again, ExportTraceServiceRequest()).SerializeToString()


def test_both_encodings_say_the_same():
    request = export(
        WHOLE, span("child", WHOLE, at=1001.0), resource={"gen_ai.agent.name": "north", "host.name": "x"}
    )
    found = decode(json.dumps(request).encode(), JSON)
    assert found == decode(binary(request), PROTOBUF)
    first, second = found.spans
    assert (first.name, first.start, first.end, first.error, first.links) == (
        "chat m",
        1000.5,
        1002.5,
        "refused",
        ("cd" * 8,),
    )
    assert first.attributes == {
        "gen_ai.agent.name": "north",
        "gen_ai.response.id": "chatcmpl-1",
        "count": 3,
        "ratio": 0.5,
        "yes": True,
        "several": ["a", 2],
    }
    assert (first.moments[0].name, first.moments[0].t, dict(first.moments[0].attributes)) == (
        "approval",
        1001.0,
        {"by": "ann"},
    )
    assert (second.parent_id, second.error) == (first.span_id, None)


@pytest.mark.parametrize(
    "broken",
    [
        {"spanId": "xyz"},
        {"traceId": "0" * 32},
        {"startTimeUnixNano": "0"},
        {"endTimeUnixNano": "1"},
        {"attributes": "none"},
        {"startTimeUnixNano": str(10**30)},
    ],
)
def test_a_broken_span_is_counted_and_the_others_are_read(broken):
    found = decode(json.dumps(export({**WHOLE, **broken}, WHOLE, "no span at all")).encode(), JSON)
    assert [one.name for one in found.spans] == ["chat m"]
    assert found.rejected == 2
    assert found.reason


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[]", b'{"resourceSpans": 3}', b'{"resourceSpans": [{"scopeSpans": {}}]}', b"\xff"],
)
def test_what_is_no_request_is_refused(data):
    with pytest.raises(WireProblem) as problem:
        decode(data, JSON)
    assert problem.value.status == 400


def test_broken_protobuf_is_refused():
    with pytest.raises(WireProblem) as problem:
        decode(b"\x0a\xff\xff\xff", PROTOBUF)
    assert problem.value.status == 400


@given(st.binary(max_size=200))
def test_no_bytes_crash_it(data):
    for encoding in (JSON, PROTOBUF):
        with contextlib.suppress(WireProblem):
            assert decode(data, encoding).spans == ()


def test_compression_is_undone_and_bounded():
    assert unpacked(b"plain", "", 3) == b"plain"
    assert unpacked(gzip.compress(b"x" * 100), "gzip", 100) == b"x" * 100
    for body, kind, limit, status in (
        (gzip.compress(b"x" * 10_000_000), "gzip", 1000, 413),
        (b"no gzip", "gzip", 1000, 400),
        (gzip.compress(b"x" * 100)[:-12], "gzip", 1000, 400),
        (b"x", "br", 1000, 415),
    ):
        with pytest.raises(WireProblem) as problem:
            unpacked(body, kind, limit)
        assert problem.value.status == status


def test_the_encoding_is_that_of_the_content_type():
    assert encoding_of("application/json; charset=utf-8") == JSON
    assert encoding_of("application/x-protobuf") == PROTOBUF
    for other in ("", "text/plain"):
        with pytest.raises(WireProblem) as problem:
            encoding_of(other)
        assert problem.value.status == 415


def test_answers_are_the_protocols_own():
    assert success(JSON) == b"{}"
    assert success(PROTOBUF) == b""
    assert json.loads(success(JSON, 300, "why")) == {
        "partialSuccess": {"rejectedSpans": "300", "errorMessage": "why"}
    }
    answer = ExportTraceServiceResponse.FromString(success(PROTOBUF, 300, "why " * 100))
    assert (answer.partial_success.rejected_spans, answer.partial_success.error_message) == (
        300,
        "why " * 100,
    )
    from google.rpc.status_pb2 import Status

    status = Status.FromString(failure(PROTOBUF, 400, "bad"))
    assert (status.code, status.message) == (3, "bad")
    assert json.loads(failure(JSON, 401, "no")) == {"code": 16, "message": "no"}


def test_without_the_package_protobuf_is_refused_with_what_to_do():
    program = (
        "import sys; sys.modules['opentelemetry.proto'] = None\n"
        "from proxies.otlp.wire import JSON, PROTOBUF, WireProblem, decode\n"
        "assert decode(b'{}', JSON).spans == ()\n"
        "try: decode(b'', PROTOBUF)\n"
        "except WireProblem as problem: print(problem.status, problem.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("415 ")
    assert "harnessgym-rl[otlp]" in done.stdout
