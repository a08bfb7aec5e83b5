import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.swe.edit import SourceEdit, edited, patch, undone
from harnessgym.errors import TaskError

TEXT = "größe = 1\nother = 2\n"


def edit(old, new, text=TEXT, path="m.py"):
    """The replacement of the first occurrence of `old`."""
    return SourceEdit(path, text.encode().index(old.encode()), old, new)


def test_offsets_are_bytes_of_utf_8():
    change = edit("= 1", "= 3")
    assert (change.start, change.end) == (8, 11)
    assert edited({"m.py": TEXT}, [change]) == {"m.py": "größe = 3\nother = 2\n"}


def test_files_without_an_edit_are_left_out():
    assert edited({"m.py": TEXT, "n.py": "x"}, [edit("1", "5")]) == {"m.py": TEXT.replace("1", "5")}


def test_edits_apply_in_any_order():
    edits = [edit("other", "o"), edit("größe", "size"), edit("2", "22")]
    assert edited({"m.py": TEXT}, edits) == {"m.py": "size = 1\no = 22\n"}
    assert edited({"m.py": TEXT}, edits[::-1]) == edited({"m.py": TEXT}, edits)


def test_neighbours_may_touch():
    edits = [SourceEdit("a", 0, "ab", "1"), SourceEdit("a", 2, "cd", "2")]
    assert edited({"a": "abcd"}, edits) == {"a": "12"}


def test_insertions_at_one_place_keep_their_order():
    edits = [SourceEdit("a", 1, "", "x"), SourceEdit("a", 1, "", "y")]
    assert edited({"a": "12"}, edits) == {"a": "1xy2"}


def test_a_new_file_is_an_insertion_into_nothing():
    assert edited({}, [SourceEdit("new", 0, "", "text\n")]) == {"new": "text\n"}


@pytest.mark.parametrize(
    "edits",
    [
        [SourceEdit("a", 0, "ab", "x"), SourceEdit("a", 1, "bc", "y")],
        [SourceEdit("a", 0, "abc", "x"), SourceEdit("a", 1, "b", "y")],
        [SourceEdit("a", 0, "ab", "x"), SourceEdit("a", 0, "ab", "x")],
        [SourceEdit("a", 0, "ab", "x"), SourceEdit("a", 1, "bc", "by")],
        [SourceEdit("a", 1, "a", "x")],
        [SourceEdit("a", 9, "z", "x")],
        [SourceEdit("missing", 0, "a", "x")],
    ],
)
def test_edits_that_overlap_or_do_not_fit_are_refused(edits):
    with pytest.raises(TaskError, match=r"does not hold '\w+' at byte \d, or two edits of it overlap"):
        edited({"a": "abcd"}, edits)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=6),
    st.permutations(range(6)),
)
def test_undone_edits_give_the_bytes_back(pieces, order):
    """The text is the old pieces with a mark after each; every other piece is replaced."""
    text, edits = "", []
    for number, (old, new) in enumerate(pieces):
        if number % 2 == 0:
            edits.append(SourceEdit("m.py", len(text.encode()), old, new))
        text += f"{old}|"
    edits = [edits[at] for at in order if at < len(edits)]
    changed = edited({"m.py": text}, edits)
    assert edited(changed, undone(edits)) == {"m.py": text}


def test_undone_edits_of_several_files_do_not_shift_each_other():
    files = {"a": "one two", "b": "one two"}
    edits = [
        SourceEdit("a", 0, "one", "eleven"),
        SourceEdit("b", 4, "two", "2"),
        SourceEdit("a", 4, "two", ""),
    ]
    assert edited(edited(files, edits), undone(edits)) == files


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("a\n", "a"),
        ("a", "a\nb"),
        ("a\x0cb\nc\n", "a\x0cb\nC\n"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("", "new\n"),
    ],
)
def test_git_applies_a_patch(tmp_path, before, after):
    (tmp_path / "m.py").write_text(before, newline="")
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    text = patch({"m.py": before}, {"m.py": after})
    subprocess.run(command, cwd=tmp_path, input=text.encode(), check=True, capture_output=True)
    assert (tmp_path / "m.py").read_bytes().decode() == after


def test_a_patch_has_the_changed_files_in_order():
    before = {"b": "1\n", "a": "1\n", "c": "1\n"}
    text = patch(before, {"b": "2\n", "a": "2\n", "c": "1\n"})
    assert [line for line in text.splitlines() if line.startswith("diff")] == [
        "diff --git a/a b/a",
        "diff --git a/b b/b",
    ]
    assert patch(before, before) == ""
