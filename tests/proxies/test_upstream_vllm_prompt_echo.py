"""A repeated prompt is compared and taken out, however the stream is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import UpstreamError
from proxies.upstreams.vllm import PromptEcho

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
COMPACT, SPACED = (",", ":"), (", ", ": ")


def event(value, separators=COMPACT):
    return b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n"


def stream(echo, separators=COMPACT):
    """An engine's first two events, the first of which repeats a prompt."""
    choice = {"text": "a", "prompt_token_ids": echo, "token_ids": [3]}
    text = event({"id": "c", "choices": [choice]}, separators).replace(
        b'"prompt_token_ids": ', b'"prompt_token_ids":'
    )
    return text + event({"id": "c", "choices": [{**choice, "prompt_token_ids": None}]})


def read(prompt, text, cuts=()):
    """What is left of a stream that comes in pieces."""
    echo, places = PromptEcho(json.dumps(prompt, separators=COMPACT).encode()), [0, *sorted(cuts), len(text)]
    return b"".join(echo.strip(text[start:end]) for start, end in pairwise(places))


@given(IDS, st.sampled_from([COMPACT, SPACED]), st.data())
def test_the_prompt_is_taken_out_wherever_the_stream_is_cut(prompt, separators, data):
    text = stream(prompt, separators)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert [json.loads(line[6:]) for line in read(prompt, text, cuts).split(b"\n\n")[:-1]] == [
        json.loads(line[6:]) for line in stream(None).split(b"\n\n")[:-1]
    ]


@given(st.sampled_from([None, 7]), st.data())
def test_a_stream_without_an_echo_is_left_as_it_is(said, data):
    text = event({"choices": [{"token_ids": [3], "prompt_token_ids": said}]}) + stream([1, 2])
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert read([1, 2], text, cuts) == text


@given(IDS, IDS, st.data())
def test_another_prompt_is_an_error(prompt, other, data):
    text = stream(other)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    if prompt == other:
        assert read(prompt, text, cuts)
        return
    with pytest.raises(UpstreamError, match="another prompt"):
        read(prompt, text, cuts)


def test_an_echo_that_is_no_json_is_an_error():
    with pytest.raises(UpstreamError, match="not JSON"):
        read([1, 2], b'data: {"prompt_token_ids":[1,x]}\n\n')
