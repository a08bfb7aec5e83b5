"""Shortened texts, tables and JSON values as commands print them."""

import io
import json
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harnessgym.cli.traces.printed import brief, console, one_line, plain_table, print_json


@dataclass
class Point:
    """A record."""

    x: int
    of: object = None


@pytest.mark.parametrize("text", ["", "short", "x" * 400, "\n" * 7])
def test_a_short_text_is_shown_whole(text):
    assert brief(text) == text


def test_a_long_text_says_how_much_is_left():
    assert brief("x" * 1500) == "x" * 400 + " … 1,100 characters more (--full)"
    assert brief("x" * 1500, full=True) == "x" * 1500


def test_a_text_of_many_lines_is_cut_after_the_eighth():
    assert brief("\n".join("123456789")) == "1\n2\n3\n4\n5\n6\n7\n8 … 2 characters more (--full)"


@given(st.text(), st.integers(1, 80))
def test_one_line_has_no_breaks_and_keeps_to_its_length(text, length):
    line = one_line(text, length)
    assert len(line) <= length
    assert len(line.splitlines()) <= 1
    if len(" ".join(text.split())) <= length:
        assert line == " ".join(text.split())


def test_a_line_that_is_cut_ends_with_an_ellipsis():
    assert one_line("a  b\nc" + "d" * 60, 6) == "a b c…"


def test_json_values_become_plain(capsys):
    value = {
        "point": Point(1, Point(2)),
        "bytes": b"\x00\xff",
        "array": np.array([1, 2]),
        "mapping": MappingProxyType({"é": 1}),
        "other": {3}.__class__,
    }
    print_json(value)
    out = capsys.readouterr().out
    assert "é" in out
    assert json.loads(out) == {
        "point": {"x": 1, "of": {"x": 2, "of": None}},
        "bytes": "00ff",
        "array": [1, 2],
        "mapping": {"é": 1},
        "other": "<class 'set'>",
    }


def test_piped_output_is_wide_unless_columns_are_set(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == 400
    monkeypatch.setenv("COLUMNS", "50")
    assert console().width == 50


def test_numbers_are_aligned_right_and_ids_are_not_wrapped():
    table = plain_table("id", "calls", "text", right=("calls",))
    assert [column.justify for column in table.columns] == ["left", "right", "left"]
    assert [column.no_wrap for column in table.columns] == [True, True, False]
    table.add_row("a", "1", "b")
    table.add_row("a", "100", "b")
    out = Console(width=40, record=True, file=io.StringIO())
    out.print(table)
    assert [line.rstrip() for line in out.export_text().splitlines()] == [
        "id  calls  text",
        "a       1  b",
        "a     100  b",
    ]
