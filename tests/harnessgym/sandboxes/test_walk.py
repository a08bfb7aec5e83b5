"""Walks through folders that change under one's feet."""

import fcntl
import os
import signal

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.walk import DEPTH, Overflow, Walk, changed, clear, copy, open_regular


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a").write_text("mine")
    (tmp_path / "root" / "b" / "c").write_text("mine")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "c").write_text("ours")
    descriptor = os.open(tmp_path / "root", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_files_come_before_folders_and_a_folder_before_what_it_holds(root):
    assert [entry.path for entry in Walk(root, 10)] == ["a", "b", "b/c"]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_folder_swapped_for_a_link_after_it_was_seen_is_not_entered(root, tmp_path, lenient):
    walk = Walk(root, 10, lenient=lenient)
    entries = iter(walk)
    assert [next(entries).path, next(entries).path] == ["a", "b"]
    os.rename("b", "moved", src_dir_fd=root, dst_dir_fd=root)
    os.symlink(tmp_path / "ours", "b", dir_fd=root)
    if lenient:
        assert list(entries) == []
        assert walk.left_out == ["b"]
    else:
        with pytest.raises(SandboxError, match="'b'"):
            next(entries)


def test_a_file_swapped_after_it_was_seen_is_not_opened(root, tmp_path):
    os.unlink("a", dir_fd=root)
    os.symlink(tmp_path / "ours" / "c", "a", dir_fd=root)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(root, "a")
    os.unlink("a", dir_fd=root)
    os.mkfifo("a", dir_fd=root)
    assert open_regular(root, "a") is None


def test_what_vanishes_is_passed_over(root, tmp_path):
    entries = iter(Walk(root, 10))
    assert [next(entries).path, next(entries).path] == ["a", "b"]
    (tmp_path / "root" / "b" / "c").unlink()
    (tmp_path / "root" / "b").rmdir()
    assert list(entries) == []


def test_a_moved_folder_is_walked_where_it_is(root, tmp_path):
    entries = iter(Walk(root, 10))
    assert [next(entries).path for _ in range(3)] == ["a", "b", "b/c"]
    os.rename("b", tmp_path / "elsewhere", src_dir_fd=root)
    assert list(entries) == []


def test_number_depth_and_length_are_bounded(root, tmp_path):
    with pytest.raises(Overflow, match="more than 2 files"):
        list(Walk(root, 2))
    assert len(list(Walk(root, 3))) == 3
    (tmp_path / "root" / "/".join(["d"] * DEPTH)).mkdir(parents=True)
    assert len(list(Walk(root, 1000))) == 3 + DEPTH
    (tmp_path / "root" / "/".join(["d"] * (DEPTH + 1))).mkdir()
    with pytest.raises(Overflow, match="folders"):
        list(Walk(root, 1000))


def test_copying_what_is_cut_off_or_grows_ends(tmp_path):
    for number, change in enumerate(
        [lambda: None, lambda: os.truncate(tmp_path / "source", 100), lambda: None]
    ):
        (tmp_path / "source").write_bytes(b"x" * 1000)
        source = os.open(tmp_path / "source", os.O_RDONLY)
        target = os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT)
        change()
        copy(source, target, 1000)
        assert (tmp_path / str(number)).read_bytes() == (tmp_path / "source").read_bytes()
        with pytest.raises(Overflow):
            copy(source, target, 99)
        os.close(source)
        os.close(target)


def test_clearing_takes_everything_but_the_folder(root, tmp_path):
    os.symlink(tmp_path / "ours", "link", dir_fd=root)
    os.mkfifo("pipe", dir_fd=root)
    clear(root)
    assert os.listdir(root) == []
    assert (tmp_path / "ours" / "c").read_text() == "ours"


def test_a_file_that_its_owner_holds_a_lease_on_counts_as_changed(root, tmp_path):
    holder = os.open(tmp_path / "root" / "a", os.O_RDWR)
    try:
        fcntl.fcntl(holder, fcntl.F_SETSIG, signal.SIGURG)  # what comes by itself would end us
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError) as refused:
            open_regular(root, "a")
        assert changed(refused.value)
    finally:
        os.close(holder)
