"""Functions, custom tools and namespaces of the Responses protocol, there and back."""

from collections.abc import Callable
from typing import Any

import pytest

from harnessgym.message import ToolSpec
from proxies.dialect import RequestProblem
from proxies.dialects.body import Fields
from proxies.dialects.responses.tools import (
    bare_name,
    echo_choice,
    echo_tools,
    flat_name,
    read_choice,
    read_tools,
)

FUNCTION = {"type": "function", "name": "get", "description": "Gets.", "parameters": {"type": "object"}}
FREEFORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def tools(*written: dict[str, Any]) -> tuple[ToolSpec, ...]:
    return read_tools(Fields({"tools": list(written)}))


def problem(read: Callable[[], object]) -> tuple[str, str]:
    """The kind and message of the problem that a read raises."""
    with pytest.raises(RequestProblem) as caught:
        read()
    return caught.value.problem.kind, caught.value.problem.message


def test_a_function_keeps_its_name_and_schema() -> None:
    assert tools(FUNCTION) == (ToolSpec("get", "Gets.", {"type": "object"}),)


def test_a_custom_tool_takes_one_text() -> None:
    assert tools({"type": "custom", "name": "sh"}) == (ToolSpec("sh", "", FREEFORM, freeform=True),)


def test_the_tools_of_a_namespace_have_its_name_and_description() -> None:
    space = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FUNCTION]}
    (tool,) = tools(space)
    assert (tool.name, tool.namespace) == ("crm__get", "crm")
    assert tool.description == "Customers.\n\nGets."


def test_a_grammar_is_stated_in_the_description() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
    (tool,) = tools({"type": "custom", "name": "n", "description": "A number.", "format": grammar})
    assert tool.description == "A number.\n\nThe input must match this regex grammar:\n[0-9]+"


@pytest.mark.parametrize(
    ("written", "kind", "message"),
    [
        ({"type": "web_search"}, "unsupported", "tools[0].type: 'web_search' tools are not supported"),
        ({"name": "f"}, "malformed", "tools[0].type: Field required"),
        ({"type": "function"}, "malformed", "tools[0].name: Field required"),
        (FUNCTION | {"defer_loading": True}, "unsupported", "tools[0].defer_loading: not supported"),
        (FUNCTION | {"async": True}, "unsupported", "tools[0].async: not supported"),
        (
            {"type": "custom", "name": "c", "format": {"type": "lark"}},
            "malformed",
            "tools[0].format.type: 'lark' is not one of 'text', 'grammar'.",
        ),
        (
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}},
            "malformed",
            "tools[0].format.definition: Field required",
        ),
        ({"type": "namespace", "tools": []}, "malformed", "tools[0].name: Field required"),
        (
            {"type": "namespace", "name": "n", "tools": [FUNCTION, {"type": "namespace", "name": "m"}]},
            "unsupported",
            "tools[0].tools[1].type: 'namespace' tools are not supported",
        ),
    ],
)
def test_a_bad_tool_is_refused_with_its_place(written: dict[str, Any], kind: str, message: str) -> None:
    refusal = problem(lambda: tools(written))
    assert refusal[0] == kind
    assert message in refusal[1]


def test_a_flat_name_may_not_be_that_of_a_namespaced_tool() -> None:
    space = {"type": "namespace", "name": "crm", "tools": [FUNCTION]}
    flat = FUNCTION | {"name": "crm__get"}
    expected = ("malformed", "tools: two tools would both be known as 'crm__get'. Rename one of them.")
    assert problem(lambda: tools(space, flat)) == expected
    assert problem(lambda: tools(flat, space)) == expected


def test_a_plain_tool_may_be_declared_twice() -> None:
    assert [tool.name for tool in tools(FUNCTION, FUNCTION)] == ["get", "get"]


@pytest.mark.parametrize(("namespace", "flat"), [("", "get"), ("crm", "crm__get"), ("a__b", "a__b__get")])
def test_a_name_without_its_namespace_is_the_client_s(namespace: str, flat: str) -> None:
    assert flat_name(namespace, "get") == flat
    assert bare_name(ToolSpec(flat, namespace=namespace)) == "get"


SPECS = (
    ToolSpec("get"),
    ToolSpec("sh", freeform=True),
    ToolSpec("crm__get", namespace="crm"),
    ToolSpec("crm__put", namespace="crm", freeform=True),
)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (None, "auto"),
        ({"type": "function", "name": "get"}, "get"),
        ({"type": "custom", "name": "sh"}, "sh"),
        ({"type": "function", "name": "get", "namespace": "crm"}, "crm__get"),
    ],
)
def test_a_choice_is_a_word_or_a_flat_name(choice: object, name: str) -> None:
    assert read_choice(Fields({"tool_choice": choice}), SPECS) == name


@pytest.mark.parametrize(
    ("choice", "kind", "message"),
    [
        ({"type": "allowed_tools"}, "unsupported", "tool_choice.type: 'allowed_tools' is not supported"),
        ({"type": "function", "name": "put"}, "malformed", "tool_choice: 'put' is not among the tools."),
        (
            {"type": "function", "name": "sh", "namespace": "crm"},
            "malformed",
            "tool_choice: 'crm__sh' is not among the tools.",
        ),
        ({"type": "function"}, "malformed", "tool_choice.name: Field required"),
        ({"name": "get"}, "malformed", "tool_choice.type: Field required"),
        (3, "malformed", "tool_choice"),
    ],
)
def test_a_bad_choice_is_refused(choice: object, kind: str, message: str) -> None:
    refusal = problem(lambda: read_choice(Fields({"tool_choice": choice}), SPECS))
    assert refusal[0] == kind
    assert message in refusal[1]


def test_an_echo_groups_neighbours_of_one_namespace() -> None:
    echoed = echo_tools((*SPECS, ToolSpec("web__get", namespace="web"), ToolSpec("crm__x", namespace="crm")))
    assert [(tool["type"], tool["name"]) for tool in echoed] == [
        ("function", "get"),
        ("custom", "sh"),
        ("namespace", "crm"),
        ("namespace", "web"),
        ("namespace", "crm"),
    ]
    assert [tool["name"] for tool in echoed[2]["tools"]] == ["get", "put"]


def test_an_echo_is_read_as_the_same_tools() -> None:
    written = (
        FUNCTION,
        {"type": "custom", "name": "sh", "description": "Shell."},
        {"type": "namespace", "name": "crm", "tools": [FUNCTION]},
    )
    assert tools(*echo_tools(tools(*written))) == tools(*written)


@pytest.mark.parametrize(
    ("choice", "echo"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("unknown", "unknown"),
        ("get", {"type": "function", "name": "get"}),
        ("sh", {"type": "custom", "name": "sh"}),
        ("crm__put", {"type": "custom", "name": "put", "namespace": "crm"}),
    ],
)
def test_a_choice_is_echoed_in_the_client_s_names(choice: str, echo: object) -> None:
    assert echo_choice(choice, SPECS) == echo


def test_a_word_is_echoed_even_if_a_tool_has_its_name() -> None:
    assert echo_choice("none", (ToolSpec("none"),)) == "none"
