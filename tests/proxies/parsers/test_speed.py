"""The work for a turn grows with its length, not with the square of it.

Work is counted, not timed: the characters of all texts that functions of the parsers are called with.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from harnessgym.message import Message
from harnessgym.registry import load
from tests.proxies.parsers.families import FAMILIES, Family, renderer
from tests.proxies.parsers.turns import FIND, encode, parser, written

EACH = pytest.mark.parametrize(
    "family", {family.grammar: family for family in FAMILIES}.values(), ids=lambda family: family.grammar
)


DIFFERENT = pytest.mark.parametrize(
    "family",
    [
        family
        for family in FAMILIES
        if family.name in ("qwen3", "mistral-v13", "llama-3.2", "llama-4", "gpt-oss")
    ],
    ids=lambda family: family.name,
)
"""Those that read what is no call in different ways."""


class Work:
    """Counts while it is the profiler."""

    def __init__(self) -> None:
        self.characters = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "proxies/parsers/" in code.co_filename and "tests" not in code.co_filename:
            arguments = code.co_varnames[: code.co_argcount]
            values = [frame.f_locals.get(name) for name in arguments]
            self.characters += sum(len(value) for value in values if isinstance(value, str))


@contextmanager
def counted() -> Iterator[Work]:
    work, before = Work(), sys.getprofile()
    sys.setprofile(work)
    try:
        yield work
    finally:
        sys.setprofile(before)


def work_of(family: Family, ids: Sequence[int], **options: object) -> int:
    """The work of reading a turn token by token."""
    reading = parser(family, **options)
    with counted() as work:
        for token in ids:
            reading.feed([token])
        reading.finish()
    return work.characters


def check(family: Family, beginning: str, piece: str, **options: object) -> None:
    start, token = encode(family, beginning), encode(family, piece)[:1]
    short, long = (work_of(family, [*start, *token * length], **options) for length in (150, 1_200))
    # Eight times the length is eight times the work, and would be 64 times if it grew with the square.
    assert long < 16 * max(short, 300)


@pytest.mark.parametrize("piece", ["a", "\n", " ", "<", "["])
@DIFFERENT
def test_a_long_turn(family: Family, piece: str) -> None:
    check(family, "", piece)
    check(family, "", piece, in_reasoning=True)


@EACH
def test_a_long_call(family: Family) -> None:
    text = renderer(family).decode(written(family, Message("assistant", "", tool_calls=(FIND,)))[0])
    for piece in ("a", "\n", "<"):
        check(family, text.partition("lamp")[0], piece)


@DIFFERENT
def test_many_stray_tags(family: Family) -> None:
    kind = load("parser", family.grammar)
    for tag in {
        *kind.markers(),
        *getattr(kind, "calls", ()),
        *getattr(kind, "own_think", ()),
        *family.tags[:2],
    }:
        check(family, "", tag)
