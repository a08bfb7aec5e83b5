"""Faults are edits: each applies, is undone to the byte, keeps the formatting, and is drawn by a seed."""

import ast
import subprocess
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.swe.edit import SourceEdit, edited, patch, undone
from environments.swe.faults import faults
from environments.swe.generation import drawn
from environments.swe.source import Source
from environments.swe.tree import tree
from harnessgym.errors import TaskError

SAMPLE = '''\
"""Größe über alles."""
import os  # ünï


@property
def plain(first, second=3, *, flag=True):  # a comment, kept
    "A docstring: 1 < 2."
    größe = {"ä": 1, 'ö': 2}   ;  other = None
    if not first or (second <= 10  and flag):
        return False
    if first is None:
        raise ValueError("at most 7", 7)
    for index in range(0,   len(first) - 1):
        if index == 3: continue
        if first[1:index] in größe:
            break
        second += 1
    text = (
        first.strip()   # spaces
        .lower()
    )
    call(text, second, key=min(1, second), flag=False)
    while (second
           > 4):
        second -= 1
    text = text if flag else other
    return text


class Thing:
    limit = 5

    def method(self, a, b):
        self.a = a
        self.b = -1
        assert a < b
        return (a, b)

    def __repr__(self):
        return 1 + 1
'''


def kept(path="m.py", text=SAMPLE):
    source = Source(path, text)
    return [fault for fault in faults(path, text) if source.parses_with(fault.edit)]


def test_every_kind_of_mistake_is_found_in_a_sample():
    found = {fault.kind for fault in kept()}
    assert found == {
        "arguments", "arithmetic", "boolean", "branches", "call", "compare", "condition", "default", "dropped", "flag", "guard",
        "keyword", "loop", "negate", "off-by-one", "return", "sign", "slice", "twin",
    }  # fmt: skip


def test_only_bodies_and_defaults_of_functions_are_touched():
    assert {fault.function for fault in kept()} == {"plain", "Thing.method"}
    safe = [
        '"A docstring: 1 < 2."',
        "limit = 5",
        "at most 7",
        "1 + 1",
        "assert a < b",
        "@property",
        "import os",
    ]
    for fault in kept():
        changed = edited({"m.py": SAMPLE}, [fault.edit])["m.py"]
        assert all(text in changed for text in safe if text not in fault.edit.old), fault


def test_every_fault_keeps_all_other_bytes_and_is_undone():
    data, files = SAMPLE.encode(), {"m.py": SAMPLE}
    for fault in kept():
        edit = fault.edit
        assert data[edit.start : edit.end] == edit.old.encode()
        changed = edited(files, [edit])
        after = changed["m.py"].encode()
        assert after == data[: edit.start] + edit.new.encode() + data[edit.end :]
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(data))
        assert edited(changed, undone([edit])) == files


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("    return a  <  b  # why", "    return a  <=  b  # why"),
        ("    return a is  not b", "    return a is b"),
        ("    return (a) and (b)", "    return (a) or (b)"),
        ("    f(a,\n      b)", "    f(b,\n      a)"),
        ("    f(a, key=(b))", "    f(a)"),
        ("    f(key=b, *a)", "    f(*a)"),
        ("    return 'é' not in b", "    return 'é' in b"),
        ("    return b[:-1]", "    return b[:]"),
        ("    return b.strip()", "    return b"),
        ("    if a:\n        return b\n    g()", "    g()"),
    ],
)
def test_faults_are_what_somebody_would_have_typed(line, result):
    head = "def f(a, b):\n"
    text = f"{head}{line}\n"
    made = {edited({"m.py": text}, [fault.edit])["m.py"] for fault in kept(text=text)}
    assert f"{head}{result}\n" in made


@pytest.mark.parametrize(
    "text", ["", "x = 1 < 2\n", "def f(: pass", "\x00", "def f():\n    pass\n", "class A: limit = 3\n"]
)
def test_what_offers_no_fault_gives_none(text):
    assert faults("m.py", text) == []


PIECES = st.lists(st.text(max_size=5), min_size=1, max_size=9)


@given(PIECES, st.data())
def test_edits_of_any_text_are_undone_to_the_byte(pieces, data):
    """Every second piece is replaced by something else."""
    before, edits, at = "".join(pieces), [], 0
    for number, piece in enumerate(pieces):
        if number % 2:
            edits.append(SourceEdit("t", at, piece, data.draw(st.text(max_size=5))))
        at += len(piece.encode())
    after = edited({"t": before}, edits)
    expected = list(pieces)
    for place, edit in enumerate(edits):
        expected[2 * place + 1] = edit.new
    assert {"t": before, **after}["t"] == "".join(expected)
    assert edited(after, undone(edits)) == dict.fromkeys(after, before)


@pytest.mark.parametrize("new", [("0", "/"), ("", "0"), ("0", ""), ("b", "ab")])
@pytest.mark.parametrize("old", ["", "a"])
def test_insertions_at_one_place_stand_in_the_order_given(old, new):
    edits = [*(SourceEdit("t", 0, "", each) for each in new), SourceEdit("t", 0, old, "")]
    after = edited({"t": old}, edits)
    assert after == {"t": "".join(new)}
    assert edited(after, undone(edits)) == {"t": old}


@pytest.mark.parametrize(
    "edits",
    [
        [SourceEdit("t", 0, "b", "c")],
        [SourceEdit("t", 9, "a", "c")],
        [SourceEdit("other", 0, "a", "c")],
        [SourceEdit("t", 0, "abc", "x"), SourceEdit("t", 2, "cd", "y")],
    ],
)
def test_an_edit_that_does_not_fit_is_refused(edits):
    with pytest.raises(TaskError, match="does not hold"):
        edited({"t": "abcdef"}, edits)


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "a\x0c\nb\x1c\nc\n", "b"])
def test_patches_are_taken_by_git(tmp_path, text):
    after = text.replace("b", "B").replace("c", "C")
    (tmp_path / "f.txt").write_bytes(text.encode())
    told = patch({"f.txt": text, "same": "x"}, {"f.txt": after, "same": "x"})
    subprocess.run(["git", "apply", "-"], input=told.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "f.txt").read_bytes() == after.encode()


def test_a_seed_draws_the_same_faults_again_and_another_one_others():
    package = tree("itsdangerous")
    first, again, other = (list(islice(drawn(package, seed), 60)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len({fault.edit for fault in first}) == len(first)
    assert all(
        Source(fault.edit.path, package.files[fault.edit.path]).parses_with(fault.edit) for fault in first
    )
