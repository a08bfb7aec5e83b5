"""Differences of texts, and which of them are only dates, ids, counts or paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.traces.difference import (
    common_ends,
    common_start,
    difference,
    only_volatile,
    without_volatile,
)

SHORT = st.text(alphabet="ab \n", max_size=12)


@given(SHORT, SHORT)
def test_the_common_start_is_the_longest(one, other):
    length = common_start(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length in (len(one), len(other))


@given(SHORT, SHORT)
def test_common_ends_do_not_overlap(old, new):
    start, tail = common_ends(old, new)
    assert start + tail <= min(len(old), len(new))
    assert old[len(old) - tail :] == new[len(new) - tail :]


@given(SHORT, SHORT)
def test_a_difference_is_three_lines(old, new):
    head, minus, plus = difference(old, new).split("\n")
    assert head.startswith("@@ -")
    assert (minus[0], plus[0]) == ("-", "+")


def test_a_difference_tells_where_and_how_many_characters():
    assert difference("abcXYZdef", "abcWdef") == "@@ -3,3 +3,1 @@\n-abcXYZdef\n+abcWdef"


def test_line_breaks_and_backslashes_are_escaped():
    assert difference("a\\\r\nb", "a") == "@@ -1,4 +1,0 @@\n-a\\\\\\r\\nb\n+a"


def test_a_long_difference_is_shown_by_its_ends():
    shown = difference("x" + "a" * 5000, "x" + "b" * 5000)
    assert len(shown) < 620
    assert "a … a" in shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Today is Monday, it is fine", "Today is Friday, it is fine"),
        ("It is 10:31 pm, go on with it", "It is 9:05 am, go on with it"),
        ("commit deadbeef is the head of main", "commit cafebabe is the head of main"),
        ("There are 3 files in here", "There are 12 files in here"),
    ],
)
def test_dates_ids_and_counts_are_volatile(old, new):
    assert only_volatile(old, new)
    assert without_volatile(old) == without_volatile(new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("same", "same"),
        ("It is fine", "It was fine"),
        ("3", "12"),
        ("x" + "1" * 2001 + "x", "x" + "2" * 2001 + "x"),
        ("write the tests, please", "write the tests!! please"),
    ],
)
def test_other_differences_are_not(old, new):
    assert not only_volatile(old, new)


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("id 123e4567-e89b-12d3-a456-426614174000.", "id 0."),
        ("see /tmp/abc123/file", "see 0"),
        ("see /var/folders/x/y", "see 0"),
        ("see /usr/lib/python", "see /usr/lib/python"),
        ("cwd: /home/me/code", "cwd: 0"),
        ("Working directory: `/home/me/code`", "Working directory: `0`"),
        ("2026-11-26 12:43:57", "0"),
        ("a \n\t b", "a b"),
    ],
)
def test_the_stable_form_of_a_text(text, stable):
    assert without_volatile(text) == stable


@given(st.text(alphabet="a1 \n\t/:-.", max_size=40))
def test_the_stable_form_is_on_one_line(text):
    assert without_volatile(text) == " ".join(without_volatile(text).split())
