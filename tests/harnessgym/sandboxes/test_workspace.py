"""Properties of workspace access: what is written is read back, and nothing leads outside."""

import contextlib
import os
import resource
import socket
import stat
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.workspace import Workspace

names = st.text(string.ascii_letters + "é .-_", min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
hostile = st.text(st.sampled_from("./a\0~"), max_size=12)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    made = Workspace(tmp_path_factory.mktemp("outer") / "inner", None, 1 << 20)
    made.make()
    return made


@given(
    folders=st.lists(names.map(lambda name: f"d{name}"), max_size=4),
    name=names.map(lambda name: f"f{name}"),
    data=st.binary(max_size=500),
)
def test_what_is_written_is_read_back(workspace, folders, name, data):
    path = "/".join([*folders, name])
    workspace.write(path, data)
    assert workspace.read(path) == data


@given(path=hostile)
def test_no_path_leads_outside(workspace, path):
    outer = workspace.root.parent
    before = {str(each) for each in outer.iterdir()}
    with contextlib.suppress(SandboxError):
        workspace.write(path, b"x")
    assert {str(each) for each in outer.iterdir()} == before
    with contextlib.suppress(SandboxError, FileNotFoundError):
        workspace.read(path)


def test_descriptors_do_not_leak(workspace, tmp_path):
    (tmp_path / "out").mkdir()
    os.symlink("/etc", workspace.root / "link")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        for path in ("link/passwd", "no/such", "link", "../x"):
            with pytest.raises((SandboxError, FileNotFoundError)):
                workspace.read(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_times_and_who_may_execute_are_kept_both_ways(workspace, tmp_path):
    source = tmp_path / "source"
    source.write_text("#!/bin/sh")
    source.chmod(0o755)
    os.utime(source, ns=(1, 1_234_567_890_123_456_789))
    workspace.copy_in(source, "copied/in")
    workspace.copy_out("copied/in", tmp_path / "file")
    workspace.copy_out("copied", tmp_path / "folder")
    for path in (workspace.root / "copied/in", tmp_path / "file", tmp_path / "folder/in"):
        assert path.stat().st_mtime_ns == 1_234_567_890_123_456_789
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_an_empty_folder_is_copied(workspace, tmp_path):
    (tmp_path / "empty").mkdir()
    workspace.copy_in(tmp_path / "empty", "hollow")
    workspace.copy_out("hollow", tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_what_is_no_file_is_not_copied_in(workspace, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.symlink("pipe", tmp_path / "link")
    for name in ("pipe", "link"):
        with pytest.raises(SandboxError, match=name):
            workspace.copy_in(tmp_path / name, "x")


def test_files_larger_than_memory_would_allow_are_copied_in_pieces(tmp_path):
    workspace = Workspace(tmp_path / "w", None, 1 << 30)
    workspace.make()
    with (tmp_path / "large").open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(1 << 20))
        file.seek(400 << 20, os.SEEK_CUR)
        file.write(b"end")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workspace.copy_in(tmp_path / "large", "large")
    workspace.copy_out("large", tmp_path / "back")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 10 << 10  # KiB
    assert subprocess.run(["cmp", tmp_path / "large", tmp_path / "back"], check=False).returncode == 0
    assert (tmp_path / "back").stat().st_blocks * 512 < 110 << 20
    workspace.remove()


def test_a_folder_20000_deep_and_a_locked_one_are_removed(tmp_path):
    workspace = Workspace(tmp_path / "w", None, 0)
    workspace.make()
    script = "import os\nfor _ in range(20000):\n  os.mkdir('deep')\n  os.chdir('deep')"
    subprocess.run([sys.executable, "-c", script], cwd=workspace.root, check=True)
    (workspace.root / "locked").mkdir()
    (workspace.root / "locked" / "file").touch(mode=0)
    (workspace.root / "locked").chmod(0)
    workspace.root.chmod(0)
    workspace.remove()
    assert not workspace.root.exists()
    workspace.remove()


def test_removal_follows_no_link(tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "kept").touch()
    workspace = Workspace(tmp_path / "w", None, 0)
    workspace.make()
    os.symlink(tmp_path / "ours", workspace.root / "link")
    workspace.remove()
    assert (tmp_path / "ours" / "kept").exists()


OTHER_NAMESPACE = """
import os, socket, sys
from harnessgym.sandboxes.forkserver import kernel
channel, folder = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
user, group = os.getuid(), os.getgid()
kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
kernel.mount("tmpfs", folder, "tmpfs", 0, "size=1m,nr_inodes=64")
os.symlink("/etc", f"{folder}/link")
socket.send_fds(channel, [b"x"], [os.open(folder, os.O_RDONLY | os.O_DIRECTORY)])
channel.recv(1)
"""


@pytest.fixture
def handed_over(tmp_path):
    """A descriptor of a file system of 1 MiB that only another mount namespace has, and its path there."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", OTHER_NAMESPACE, str(theirs.fileno()), str(folder)]
        root = Path(__file__).parents[3]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=root) as other:
            theirs.close()
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            yield descriptors[0], folder
            ours.close()
        assert other.returncode == 0
        os.close(descriptors[0])


@pytest.mark.bubblewrap
def test_a_folder_of_another_mount_namespace_is_used_through_its_descriptor(handed_over, tmp_path):
    descriptor, folder = handed_over
    workspace = Workspace(descriptor, None, 1 << 20)
    workspace.write("deep/er/file", b"there")
    assert workspace.read("deep/er/file") == b"there"
    assert os.listdir(folder) == []  # nothing was written where the path leads for us
    for path in ("link/passwd", "../x", "/etc/passwd"):
        with pytest.raises(SandboxError):
            workspace.read(path)
    export = workspace.export(tmp_path / "out", 1000, 10)
    assert (export.files, export.left_out) == (1, ("link",))
    workspace.copy_out("deep", tmp_path / "deep")
    assert (tmp_path / "deep/er/file").read_bytes() == b"there"
    assert 0 < workspace.size() <= 8192
    workspace.remove()
    assert os.listdir(descriptor) == []
    os.fstat(descriptor)  # it stays the caller's


@pytest.mark.bubblewrap
def test_a_full_disk_is_reported_as_such(handed_over, tmp_path):
    workspace = Workspace(handed_over[0], None, 1 << 20)
    (tmp_path / "large").write_bytes(b"x" * (2 << 20))
    with pytest.raises(SandboxError, match=r"'large'.*No space left on device"):
        workspace.write("large", b"x" * (2 << 20))
    with pytest.raises(SandboxError, match=r"'large'.*No space left on device"):
        workspace.copy_in(tmp_path / "large", "large")
    folders = "/".join(str(number) for number in range(100))  # there are 64 inodes
    with pytest.raises(SandboxError, match="No space left on device"):
        workspace.write(f"{folders}/file", b"")


@pytest.mark.bubblewrap
def test_an_export_that_this_machine_cannot_take_says_why(handed_over, tmp_path):
    workspace = Workspace(tmp_path / "w", None, 1 << 20)
    workspace.make()
    workspace.write("large", b"x" * (2 << 20))
    with pytest.raises(SandboxError, match="No space left on device"):
        workspace.export(Path(f"/proc/self/fd/{handed_over[0]}/out"), 1 << 30, 10)


def test_a_missing_tool_is_named_with_its_remedy():
    from harnessgym.sandboxes.bubblewrap import bubblewrap_available

    problem = bubblewrap_available("no-such-bwrap")
    assert problem is not None
    assert "apt-get install bubblewrap" in problem
