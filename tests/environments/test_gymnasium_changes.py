"""The difference of a workspace: what it shows, and that traps and tricks in it neither stop it nor hide
anything.
"""

import os
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.workspace.changes import WorkspaceChanges, look
from harnessgym.sandboxes.workspace import Workspace

TEXTS = {"a.txt": "one\ntwo\n", "src/b.py": "x = 1\n"}


@pytest.fixture
def folder(tmp_path):
    for path, text in TEXTS.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def changes(folder, texts=TEXTS, told=None):
    return WorkspaceChanges(Workspace(folder, None, 1 << 20), texts, told)


def test_nothing_changed_is_nothing(folder):
    assert changes(folder).diff() == ""


def test_changed_new_and_removed_files_are_shown_line_by_line(folder):
    seen = changes(folder)
    (folder / "a.txt").write_text("one\n2\n")
    (folder / "c").write_text("new")
    (folder / "src/b.py").unlink()
    assert seen.diff() == (
        "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        "--- /dev/null\n+++ b/c\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"
        "--- a/src/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    )
    (folder / "a.txt").write_text(TEXTS["a.txt"])
    (folder / "src/b.py").write_text(TEXTS["src/b.py"])
    (folder / "c").unlink()
    assert seen.diff() == ""


def test_a_change_that_hides_its_time_and_size_is_seen(folder):
    seen, before = changes(folder), (folder / "a.txt").stat()
    time.sleep(0.02)  # a tick of the kernel's clock
    (folder / "a.txt").write_text("one\nTWO\n")
    os.utime(folder / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "+TWO" in seen.diff()


def test_files_that_the_task_does_not_hold_are_compared_with_what_was_told(folder, tmp_path_factory):
    told = tmp_path_factory.mktemp("told") / "all"
    shutil.copytree(folder, told)
    seen = changes(folder, {}, told)
    (folder / "a.txt").write_text("one\n")
    assert "-two" in seen.diff()


def test_what_is_no_text_is_named(folder):
    seen = changes(folder)
    (folder / "a.txt").write_bytes(b"\xff\xfe")
    (folder / "big").write_bytes(b"x" * (1 << 17))
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "src/b.py").write_bytes(b"a\0b")
    (folder / "empty").touch()
    assert seen.diff().splitlines() == [
        "Changed a.txt (file of 2 bytes)",
        "New big (file of 131072 bytes)",
        "New empty file empty",
        "New link (link)",
        "Changed src/b.py (file of 3 bytes)",
    ]


def test_traps_are_passed_over(folder):
    seen = changes(folder)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(".")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_bytes(b"x")
    deep = folder
    for _ in range(200):
        deep = deep / "d"
        deep.mkdir()
    (deep / "far").write_text("x")
    assert seen.diff() == "New loop (link)\n"


def test_a_workspace_that_is_gone_is_an_error(folder):
    seen = changes(folder)
    shutil.rmtree(folder)
    with pytest.raises(OSError):
        seen.diff()


@given(st.dictionaries(st.sampled_from(["a", "b/c", "b/d"]), st.text(max_size=30), max_size=3))
def test_every_written_line_is_shown(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("work")
    seen = changes(folder, {})
    for path, text in written.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(text.encode(errors="replace"))
    diff = seen.diff()
    assert set(look(Workspace(folder, None, 1))) == set(written)
    for path, text in written.items():
        assert path in diff
        if "\0" not in text:
            lines = text.encode(errors="replace").decode().split("\n")
            assert all(f"+{line}" in diff for line in lines if line)
