"""Folders come back as they were packed, and equal ones are equal strings."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.tasks import packing
from harnessgym.tasks.packing import archive_of, packed, packed_files, unpacked

NAMES = st.lists(st.text("abc é", min_size=1, max_size=8), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=5))
def test_files_come_back_whatever_they_hold(files):
    assert unpacked(packed_files(files)) == files
    assert packed_files(dict(reversed(files.items()))) == packed_files(files)


@given(st.text(max_size=40))
def test_what_was_never_packed_is_refused(text):
    with pytest.raises(TaskError, match="packed"):
        archive_of(text)


def test_later_folders_lie_over_earlier_ones(tmp_path):
    for name, text in (("a/x.sh", "1"), ("a/sub/y", "1"), ("b/x.sh", "2"), ("b/__pycache__/z", "no")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert unpacked(packed(tmp_path / "a", tmp_path / "b", tmp_path / "nowhere")) == {"x.sh": b"2", "sub/y": b"1"}
    before = packed(tmp_path / "a")
    os.utime(tmp_path / "a" / "x.sh", (1, 1))
    assert packed(tmp_path / "a") == before
    (tmp_path / "a" / "x.sh").chmod(0o755)
    assert packed(tmp_path / "a") != before


def test_links_and_too_much_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="link"):
        packed(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "large").write_bytes(bytes(packing.MAX_BYTES + 1))
    with pytest.raises(TaskError, match="at most 32"):
        packed(tmp_path)
