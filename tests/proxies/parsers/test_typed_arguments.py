"""Arguments without quotes become what the tool's schema says, or what a template would have written so."""

import json
from typing import Any

import pytest

from harnessgym.message import ToolSpec
from proxies.parsers.typed_arguments import PYTHON_WORDS, ArgumentReader

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "nullable": {"type": "integer", "nullable": True},
        "one": {"enum": ["3", "4"]},
        "mixed": {"enum": ["a", 3]},
        "const": {"const": 3},
        "list": {"$ref": "#/$defs/list"},
        "round": {"$ref": "#/$defs/round"},
        "gone": {"$ref": "#/$defs/gone"},
        "anything": {},
        "some": {"anyOf": [{"type": "string"}, {}]},
    },
    "$defs": {"list": {"type": "array"}, "round": {"$ref": "#/$defs/round"}},
    "additionalProperties": {"type": "string"},
}


def read(name: str, text: str, schema: dict[str, Any] | None = None, **words: str) -> str:
    """The JSON text of one argument."""
    offered = [] if schema == {} else [ToolSpec("f", parameters=schema or SCHEMA)]
    out = ArgumentReader(offered, words or None).object("f", [(name, text)])
    assert out is not None
    assert out.startswith(f'{{"{name}": ')
    return out[len(name) + 5 : -1]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "3", '"3"'),
        ("text", '{"a": 1}', r'"{\"a\": 1}"'),
        ("text", " a\n", r'" a\n"'),
        ("text", "null", '"null"'),
        ("whole", "3", "3"),
        ("whole", " 3 ", "3"),
        ("whole", "3.50", "3.50"),
        ("whole", "three", '"three"'),
        ("whole", "NaN", '"NaN"'),
        ("whole", '"3"', r'"\"3\""'),
        ("number", "1e-05", "1e-05"),
        ("flag", "true", "true"),
        ("flag", "True", '"True"'),
        ("maybe", "null", "null"),
        ("maybe", "3", '"3"'),
        ("either", "3", "3"),
        ("either", "true", '"true"'),
        ("nullable", "null", "null"),
        ("one", "3", '"3"'),
        ("mixed", "3", "3"),
        ("mixed", "a", '"a"'),
        ("const", "3", "3"),
        ("list", '[1,  "a"]', '[1,  "a"]'),
        ("round", "3", "3"),
        ("gone", "3", "3"),
        ("some", "3", "3"),
        ("anything", '{"a": [1, null]}', '{"a": [1, null]}'),
        ("anything", '{"a":1}', r'"{\"a\":1}"'),
        ("anything", "03", '"03"'),
        ("anything", "1.50", '"1.50"'),
        ("other", "3", '"3"'),
    ],
)
def test_the_schema_decides(name: str, text: str, value: str) -> None:
    assert read(name, text) == value
    json.loads(value)


@pytest.mark.parametrize(
    ("text", "value"), [("True", "true"), ("None", "null"), ("true", '"true"'), ("1.5", "1.5")]
)
def test_without_a_schema_a_text_is_the_value_that_a_template_would_write_so(text: str, value: str) -> None:
    assert read("a", text, {}, **PYTHON_WORDS) == value


def test_words_are_read_where_the_schema_allows_their_value() -> None:
    assert read("flag", "True", **PYTHON_WORDS) == "true"
    assert read("flag", "true", **PYTHON_WORDS) == "true"
    assert read("text", "True", **PYTHON_WORDS) == '"True"'
    assert read("maybe", "None", **PYTHON_WORDS) == "null"


def test_a_name_that_appears_twice_is_refused() -> None:
    assert ArgumentReader(()).object("f", [("a", "1"), ("a", "2")]) is None
