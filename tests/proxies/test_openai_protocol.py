"""Errors, choices and usage as all of OpenAI's protocols word them."""

import json

import pytest

from proxies.dialect import Problem, RequestProblem, Stamp, TokenUsage, total_usage
from proxies.dialects.body import Fields
from proxies.dialects.openai_protocol import (
    ErrorShape,
    OpenAIProtocol,
    completion_head,
    completion_usage,
    read_choice_word,
    read_choices,
)

SHAPE = ErrorShape("messages", "at most {max_tokens} tokens, got {tokens}")


class Spoken(OpenAIProtocol):
    """A protocol with that wording."""

    errors = SHAPE


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("malformed", 400, None),
        ("unsupported", 400, "unsupported_value"),
        ("unknown_key", 401, "invalid_api_key"),
        ("sealed", 403, "session_sealed"),
        ("limit", 403, "session_limit_reached"),
        ("not_found", 404, "not_found"),
        ("too_large", 413, "request_too_large"),
        ("overflow", 400, "context_length_exceeded"),
        ("overloaded", 429, "rate_limit_exceeded"),
        ("unavailable", 503, "service_unavailable"),
        ("upstream", 502, None),
    ],
)
def test_each_problem_has_its_status_and_code(kind, status, code):
    answered, headers, body = SHAPE.respond(Problem(kind, "Ü"))
    error = json.loads(body)["error"]
    assert (answered, error["code"], error["message"]) == (status, code, "Ü")
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", ["sealed", "limit"])
def test_a_client_is_told_not_to_repeat_what_cannot_succeed(kind):
    assert SHAPE.respond(Problem(kind, "x"))[1]["x-should-retry"] == "false"
    assert "x-should-retry" not in SHAPE.respond(Problem("upstream", "x"))[1]


@pytest.mark.parametrize(("wait", "header"), [(None, "1"), (0.2, "1"), (2.0, "2"), (2.1, "3")])
def test_a_wait_is_rounded_up_to_seconds(wait, header):
    problem = Problem("overloaded", "x", retry_after_s=wait)
    assert SHAPE.respond(problem)[1]["retry-after"] == header
    assert "retry-after" not in SHAPE.respond(Problem("malformed", "x"))[1]


def test_a_prompt_that_is_too_long_is_told_in_the_providers_words():
    whole = SHAPE.describe(Problem("overflow", "too long", tokens=12, max_tokens=10))
    assert (whole["message"], whole["param"]) == ("at most 10 tokens, got 12", "messages")
    assert SHAPE.describe(Problem("overflow", "too long"))["message"] == "too long"


def test_a_problem_may_bring_its_own_code():
    assert SHAPE.describe(Problem("not_found", "x", code="model_not_found"))["code"] == "model_not_found"


def test_an_error_in_a_stream_is_an_event():
    sent = Spoken().stream_error(Problem("upstream", "gone"), Stamp("1", "policy", 2))
    assert json.loads(sent.removeprefix(b"data: "))["error"]["message"] == "gone"


def test_tokens_cannot_be_counted():
    with pytest.raises(NotImplementedError):
        Spoken().count(3)


@pytest.mark.parametrize(("value", "number"), [({}, 1), ({"n": None}, 1), ({"n": 128}, 128)])
def test_the_number_of_choices(value, number):
    assert read_choices(Fields(value)) == number


def test_too_many_choices_are_refused():
    with pytest.raises(RequestProblem, match="n: expected at most 128"):
        read_choices(Fields({"n": 129}))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function"}, None),
    ],
)
def test_the_word_of_a_tool_choice(value, word):
    assert read_choice_word(Fields({"tool_choice": value})) == word


def test_another_word_is_refused():
    with pytest.raises(RequestProblem, match="'any' is not one of"):
        read_choice_word(Fields({"tool_choice": "any"}))


def test_the_head_and_usage_of_a_completion():
    assert completion_head("cmpl", "text_completion", Stamp("7", "policy", 9)) == {
        "id": "cmpl-7",
        "object": "text_completion",
        "created": 9,
        "model": "policy",
        "system_fingerprint": None,
    }
    assert completion_usage(TokenUsage(10, 4, 3)) == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_siblings_share_one_prompt():
    assert total_usage([TokenUsage(10, 4, 3, 1), TokenUsage(10, 5, 0, 2)]) == TokenUsage(10, 9, 3, 3)
    assert total_usage([]) == TokenUsage(0, 0)
