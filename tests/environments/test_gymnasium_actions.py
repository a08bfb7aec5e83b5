"""The grammar of actions: every text is read without an error, and what is sampled means what it says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.workspace.action import (
    ActionSpace,
    EditAction,
    Misread,
    RunAction,
    SubmitAction,
    Write,
    parse,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["run", "write", "edit", "old", "new", "text"]), inner)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"run": "ls -l"}', RunAction("ls -l")),
        ('{"write": "a/b", "text": ""}', Write("a/b", "")),
        ('{"edit": "a", "old": "x", "new": "\\u6f22"}', EditAction("a", "x", "漢")),
        (' {"submit": true}\n', SubmitAction()),
    ],
)
def test_an_object_is_an_action(text, action):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ls",
        "[]",
        "{}",
        '"run"',
        '{"run": "ls", "submit": true}',
        '{"run": "ls", "cwd": "a"}',
        '{"run": ["ls"]}',
        '{"run": " "}',
        '{"run": "a\\u0000b"}',
        '{"run": "\\ud800"}',
        '{"write": "a"}',
        '{"write": "", "text": "x"}',
        '{"edit": "a", "old": "", "new": "x"}',
        '{"submit": false}',
        '{"submit": 1}',
        "[" * 30_000,
        '{"run": ' + "9" * 6_000 + "}",
        json.dumps({"run": "é" * 60_000}),
    ],
)
def test_anything_else_is_none_and_says_why(text):
    found = parse(text)
    assert isinstance(found, Misread)
    assert "An action is one JSON object" in found.why or "write a script" in found.why


@given(st.text() | JSON.map(json.dumps))
def test_no_text_is_an_error(text):
    assert parse(text) is not None


@given(st.text(min_size=1), st.text(), st.text())
def test_what_is_written_as_an_edit_is_read_as_one(path, old, new):
    found = parse(json.dumps({"edit": path, "old": old, "new": new}))
    assert isinstance(found, Misread) or found == EditAction(path, old, new)


def test_samples_lie_in_the_space_and_are_actions_of_every_kind():
    space = ActionSpace(seed=3)
    samples = [space.sample() for _ in range(200)]
    assert all(space.contains(sample) for sample in samples)
    assert {type(parse(sample)) for sample in samples} == {
        RunAction,
        Write,
        EditAction,
        SubmitAction,
        Misread,
    }
    again = ActionSpace(seed=3)
    assert [again.sample() for _ in range(200)] == samples
