"""Fields of a request body: each wrong one is refused by its path."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message
from proxies.dialect import RequestProblem
from proxies.dialects.body import Fields, bearer, merge_systems, public_headers


def refused(read):
    """The kind and message of the problem that a read raises."""
    with pytest.raises(RequestProblem) as caught:
        read()
    return caught.value.problem.kind, caught.value.problem.message


@pytest.mark.parametrize(
    ("value", "kind"), [([], "list"), ("x", "str"), (3, "int"), (None, "null"), (True, "bool")]
)
def test_a_body_must_be_an_object(value, kind):
    assert refused(lambda: Fields(value)) == (
        "malformed",
        f"The request body: expected an object, got {kind}.",
    )


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"{} {}"])
def test_a_body_must_be_json(body):
    kind, message = refused(lambda: Fields.parse(body))
    assert kind == "malformed"
    assert message.startswith("The request body is not valid JSON: ")


def test_paths_name_nested_fields():
    fields = Fields({"a": {"b": [{"c": 1}, {"c": "x"}]}})
    first, second = fields.child("a").children("b")
    assert (first.path, second.at("c")) == ("a.b[0]", "a.b[1].c")
    assert second.text("c") == "x"
    assert refused(lambda: first.text("c")) == ("malformed", "a.b[0].c: expected a string, got int.")


def test_a_required_field_must_be_there_and_not_null():
    for raw in ({}, {"model": None}):
        assert refused(lambda raw=raw: Fields(raw).need("model")) == (
            "malformed",
            "model: Field required",
        )
        assert not Fields(raw).given("model")
    assert Fields({"model": ""}).text("model") == ""
    assert Fields({"n": 0}).given("n")


def test_a_text_with_a_default_may_be_left_out():
    assert Fields({}).text("user", "me") == Fields({"user": None}).text("user", "me") == "me"
    assert Fields({"user": ""}).text("user", "me") == ""


def test_flags_are_booleans():
    assert Fields({"stream": True}).flag("stream")
    assert not Fields({"stream": False}).flag("stream", default=True)
    assert Fields({"stream": None}).flag("stream", default=True)
    assert refused(lambda: Fields({"stream": 1}).flag("stream"))[1] == "stream: expected a boolean, got int."


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", []])
def test_counts_are_positive_integers(value):
    assert refused(lambda: Fields({"n": value}).count("n")) == (
        "malformed",
        "n: expected an integer of at least 1.",
    )


@pytest.mark.parametrize(("value", "count"), [(None, None), (1, 1), (2**40, 2**40)])
def test_a_count_may_be_null(value, count):
    assert Fields({"n": value}).count("n") == count


def test_objects_and_arrays_are_empty_where_absent():
    fields = Fields({"tools": None})
    assert fields.child("tools").raw == fields.child("gone").raw == {}
    assert fields.children("tools") == fields.children("gone") == []
    assert fields.each("tools", lambda item: item) == []


def test_an_array_must_hold_objects():
    assert refused(lambda: Fields({"m": {}}).children("m"))[1] == "m: expected an array, got dict."
    assert refused(lambda: Fields({"m": [{}, 3]}).children("m"))[1] == "m[1]: expected an object, got int."


def test_each_reads_in_order():
    fields = Fields({"m": [{"x": "a"}, {"x": "b"}]})
    assert fields.each("m", lambda item: item.path + item.text("x")) == ["m[0]a", "m[1]b"]


@pytest.mark.parametrize(
    ("value", "texts"), [(None, ()), ("", ("",)), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))]
)
def test_stop_sequences_are_one_text_or_several(value, texts):
    assert Fields({"stop": value}).texts("stop") == texts


@pytest.mark.parametrize("value", [1, {"a": 1}, ["a", 1], [["a"]]])
def test_other_values_are_no_texts(value):
    assert refused(lambda: Fields({"stop": value}).texts("stop"))[1].startswith("stop: expected a string or")


def test_only_what_was_sent_is_kept():
    assert Fields({"a": None, "c": 1}).only(("a", "b")) == {"a": None}


@pytest.mark.parametrize("value", [None, False, [], {}, 0])
def test_a_default_of_an_unsupported_field_asks_for_nothing(value):
    Fields({"logprobs": value}).refuse(("logprobs", "absent"))


@pytest.mark.parametrize("value", [True, 1, "", [0], {"a": None}])
def test_any_other_value_is_refused(value):
    assert refused(lambda: Fields({"x": {"logprobs": value}}).child("x").refuse(("logprobs",))) == (
        "unsupported",
        "x.logprobs: not supported by this endpoint.",
    )


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("BEARER abc def", "abc def"),
        ("Bearer", None),
        ("Bearer  ", None),
        ("Basic abc", None),
        ("abc", None),
        ("", None),
    ],
)
def test_the_token_of_a_bearer_header(header, token):
    assert bearer({"authorization": header}) == token
    assert bearer({}) is None


def test_headers_that_carry_secrets_are_left_out():
    secrets = ("authorization", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization")
    assert public_headers({**dict.fromkeys(secrets, "s"), "user-agent": "pi"}) == {"user-agent": "pi"}


def test_adjacent_system_messages_are_merged_in_place():
    messages = [
        Message("system", "a"),
        Message("system", "b"),
        Message("user", "c"),
        Message("system", "d"),
        Message("system", "e"),
    ]
    assert [(item.role, item.content) for item in merge_systems(messages)] == [
        ("system", "a\n\nb"),
        ("user", "c"),
        ("system", "d\n\ne"),
    ]


@given(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=8))
def test_merging_leaves_no_two_systems_side_by_side_and_every_other_message(roles):
    merged = merge_systems([Message(role, str(at)) for at, role in enumerate(roles)])
    found = [message.role for message in merged]
    assert ("system", "system") not in itertools.pairwise(found)
    assert [role for role in found if role != "system"] == [role for role in roles if role != "system"]
    assert merge_systems(merged) == merged


@pytest.mark.parametrize("value", ["hot", True, [1], {}])
@pytest.mark.parametrize("name", ["temperature", "top_p", "seed"])
def test_fields_of_sampling_are_numbers(name: str, value: Any) -> None:
    with pytest.raises(RequestProblem, match=f"{name}: expected a number"):
        Fields({name: value}).only((name,))
    for right in (0, 0.5, None):
        assert Fields({name: right}).only((name, "stop")) == {name: right}
