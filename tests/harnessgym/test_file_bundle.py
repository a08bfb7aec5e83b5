"""Folders come back as they were packed, and equal ones are equal strings."""

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym import file_bundle
from harnessgym.errors import TaskError
from harnessgym.file_bundle import bundle, bundled, packed, unpacked

NAMES = st.lists(st.text("abc é", min_size=1, max_size=8), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=5))
def test_files_come_back_whatever_they_hold(files):
    assert unpacked(packed(files)) == files
    assert packed(dict(reversed(files.items()))) == packed(files)
    found = bundled(files)
    with tarfile.open(fileobj=io.BytesIO(found.archive())) as archive:
        assert {entry.name: archive.extractfile(entry).read() for entry in archive} == files


@given(st.text(max_size=40))
def test_what_was_never_packed_is_refused(text):
    with pytest.raises(TaskError, match="packed"):
        unpacked(text)


def test_texts_stay_readable_and_the_rest_is_packed():
    found = bundled({"a": b"text", "b": b"\xff\x00", "c": "é".encode()}, {"b", "a"})
    assert found.texts == {"a": "text", "c": "é"}
    assert unpacked(found.rest) == {"b": b"\xff\x00"}
    with tarfile.open(fileobj=io.BytesIO(found.archive())) as archive:
        assert {entry.name: entry.mode for entry in archive} == {"a": 0o755, "b": 0o755, "c": 0o644}


def test_later_folders_lie_over_earlier_ones(tmp_path):
    for name, text in (("a/x.sh", "1"), ("a/sub/y", "1"), ("b/x.sh", "2"), ("b/__pycache__/z", "no")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert bundle(tmp_path / "a", tmp_path / "b", tmp_path / "nowhere").texts == {"x.sh": "2", "sub/y": "1"}
    before = bundle(tmp_path / "a").archive()
    os.utime(tmp_path / "a" / "x.sh", (1, 1))
    assert bundle(tmp_path / "a").archive() == before
    (tmp_path / "a" / "x.sh").chmod(0o755)
    assert bundle(tmp_path / "a").executable == ("x.sh",)


def test_links_and_too_much_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="link"):
        bundle(tmp_path)
    (tmp_path / "link").unlink()
    (tmp_path / "large").write_bytes(bytes(file_bundle.MAX_BYTES + 1))
    with pytest.raises(TaskError, match="at most 32"):
        bundle(tmp_path)
