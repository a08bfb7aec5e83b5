"""Server-sent events: one line of data, whatever the text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from proxies import sse


def test_an_event_may_have_a_name():
    assert sse.encode({"a": 1}) == b'data: {"a":1}\n\n'
    assert sse.encode([1, 2], "ping") == b"event: ping\ndata: [1,2]\n\n"


@given(st.text(max_size=20))
def test_no_text_breaks_a_line(text):
    sent = sse.encode({"text": text}).decode()
    assert sent.endswith("\n\n")
    assert len(sent.splitlines()) == 2
    assert json.loads(sent.removeprefix("data: ")) == {"text": text}


def test_line_separators_of_unicode_are_escaped():
    assert sse.encode("\u2028\u2029") == b'data: "\\u2028\\u2029"\n\n'


def test_keepalives_are_comments():
    assert sse.KEEPALIVE.startswith(b":")
    assert sse.KEEPALIVE.endswith(b"\n\n")
