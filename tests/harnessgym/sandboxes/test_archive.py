"""Archives of workspaces: what is packed comes back as it was, and nothing in an archive leads outside."""

import io
import os
import socket
import stat
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.archive import pack, unpack
from harnessgym.sandboxes.workspace import Workspace

BOUNDS = {"max_bytes": 1 << 24, "max_files": 10_000}


def fresh(folder, name="w", owner=None):
    workspace = Workspace(folder / name, owner, 1 << 24)
    workspace.make()
    return workspace


def tree(root):
    """Everything below a folder: kind, mode, modification time, content."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            data = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    data = file.read()
            found[os.path.relpath(path, os.fsencode(root))] = (status.st_mode, status.st_mtime_ns, link, data)
    return found


names = st.binary(min_size=1, max_size=12).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, 47}
)
times = st.integers(0, 2**33 * 10**9)
files = st.tuples(
    st.just("file"), st.binary(max_size=300), st.integers(0, 0o777).map(lambda mode: mode | 0o400), times
)
links = st.tuples(
    st.just("link"), st.binary(min_size=1, max_size=150).filter(lambda goal: 0 not in goal), st.just(0), times
)
folders = st.tuples(
    st.just("folder"),
    st.dictionaries(names, st.one_of(files, links), max_size=3),
    st.integers(0, 0o777).map(lambda mode: mode | 0o700),
    times,
)


def make(root, things):
    for name, (kind, content, mode, time) in things.items():
        path = os.path.join(root, name)
        if kind == "folder":
            os.mkdir(path)
            make(path, content)
            os.chmod(path, mode)
        elif kind == "link":
            os.symlink(content, path)
        else:
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, mode)
        os.utime(path, ns=(time, time), follow_symlinks=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(things=st.dictionaries(names, st.one_of(files, links, folders), max_size=6))
def test_what_is_packed_comes_back_as_it_was(tmp_path_factory, things):
    folder = tmp_path_factory.mktemp("archive")
    one, other = fresh(folder, "one"), fresh(folder, "other")
    make(os.fsencode(one.root), things)
    pack(one, folder / "kept.tar", **BOUNDS)
    unpack(folder / "kept.tar", other)
    assert tree(other.root) == tree(one.root)
    one.remove()
    other.remove()


def test_long_and_deep_names_come_back(tmp_path):
    one, other = fresh(tmp_path, "one"), fresh(tmp_path, "other")
    path = "/".join(["d" * 200] * 12)
    one.write(f"{path}/{'n' * 255}", b"x")
    one.write("ünï/码/\N{PILE OF POO}", b"y")
    for name in ("Case", "case", "cAsE", "e\u0301", "\u00e9"):
        one.write(name, name.encode())
    pack(one, tmp_path / "kept.tar", **BOUNDS)
    unpack(tmp_path / "kept.tar", other)
    assert tree(other.root) == tree(one.root)


def test_what_is_no_data_is_left_out_and_hard_links_become_files(tmp_path):
    one, other = fresh(tmp_path, "one"), fresh(tmp_path, "other")
    one.write("a", b"twice")
    os.link(one.root / "a", one.root / "b")
    os.mkfifo(one.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(one.root / "socket"))
    assert pack(one, tmp_path / "kept.tar", **BOUNDS) == 10
    unpack(tmp_path / "kept.tar", other)
    assert sorted(os.listdir(other.root)) == ["a", "b"]
    assert (other.root / "b").read_bytes() == b"twice"
    assert (other.root / "a").stat().st_nlink == 1


def test_a_workspace_above_its_bounds_is_not_packed(tmp_path):
    workspace = fresh(tmp_path)
    os.truncate(os.open(workspace.root / "sparse", os.O_CREAT | os.O_WRONLY), 1 << 40)
    with pytest.raises(SandboxError, match="bytes"):
        pack(workspace, tmp_path / "kept.tar", **BOUNDS)
    assert not (tmp_path / "kept.tar").exists()
    (workspace.root / "sparse").unlink()
    for number in range(11):
        workspace.write(str(number), b"")
    with pytest.raises(SandboxError, match="more than 10 files"):
        pack(workspace, tmp_path / "kept.tar", max_bytes=100, max_files=10)
    assert not (tmp_path / "kept.tar").exists()


def archive(path, *members):
    with tarfile.open(path, "w") as file:
        for name, kind, goal in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, goal, 5 if kind == tarfile.REGTYPE else 0
            file.addfile(info, io.BytesIO(b"owned") if kind == tarfile.REGTYPE else None)
    return path


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", tarfile.REGTYPE, "")],
        [("a/../../escaped", tarfile.REGTYPE, "")],
        [("OUTER/escaped", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "OUTER"), ("link/escaped", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/escaped", tarfile.DIRTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/escaped", tarfile.SYMTYPE, "x")],
        [("escaped", tarfile.LNKTYPE, "../secret")],
        [("escaped", tarfile.LNKTYPE, "OUTER/secret")],
        [("escaped", tarfile.CHRTYPE, "")],
        [("escaped", tarfile.BLKTYPE, "")],
        [("escaped", tarfile.FIFOTYPE, "")],
        [(".", tarfile.REGTYPE, "")],
    ],
)
def test_traversal_links_and_devices_are_refused(tmp_path, members):
    (tmp_path / "secret").write_text("ours")
    workspace = fresh(tmp_path)
    placed = [
        (name.replace("OUTER", str(tmp_path)), kind, goal.replace("OUTER", str(tmp_path)))
        for name, kind, goal in members
    ]
    file = archive(tmp_path / "bad.tar", *placed)
    with pytest.raises(SandboxError):
        unpack(file, workspace)
    assert sorted(os.listdir(tmp_path)) == ["bad.tar", "secret", "w"]
    assert (tmp_path / "secret").read_text() == "ours"
    assert not os.path.lexists(workspace.root / "escaped")


def test_a_link_that_lies_there_is_replaced_not_followed(tmp_path):
    (tmp_path / "secret").write_text("ours")
    workspace = fresh(tmp_path)
    os.symlink(tmp_path / "secret", workspace.root / "file")
    unpack(archive(tmp_path / "good.tar", ("file", tarfile.REGTYPE, "")), workspace)
    assert workspace.read("file") == b"owned"
    assert (tmp_path / "secret").read_text() == "ours"


def test_it_is_laid_over_what_is_there(tmp_path):
    one, other = fresh(tmp_path, "one"), fresh(tmp_path, "other")
    one.write("folder/new", b"new")
    one.write("changed", b"after")
    other.write("folder/old", b"old")
    other.write("changed", b"before")
    pack(one, tmp_path / "kept.tar", **BOUNDS)
    unpack(tmp_path / "kept.tar", other)
    assert [other.read(path) for path in ("folder/new", "folder/old", "changed")] == [
        b"new",
        b"old",
        b"after",
    ]


@pytest.mark.parametrize("damage", [b"", b"no archive at all" * 100])
def test_what_is_no_archive_says_so(tmp_path, damage):
    (tmp_path / "bad.tar").write_bytes(damage)
    with pytest.raises(SandboxError, match="Cannot unpack"):
        unpack(tmp_path / "bad.tar", fresh(tmp_path))


def test_a_cut_off_archive_says_so(tmp_path):
    workspace = fresh(tmp_path, "one")
    workspace.write("f", b"x" * 100_000)
    pack(workspace, tmp_path / "kept.tar", **BOUNDS)
    os.truncate(tmp_path / "kept.tar", 50_000)
    with pytest.raises(SandboxError, match=r"Cannot unpack|ends within"):
        unpack(tmp_path / "kept.tar", fresh(tmp_path, "other"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_everything_belongs_to_the_owner(tmp_path):
    one, other = fresh(tmp_path, "one"), fresh(tmp_path, "other", owner=1234)
    one.write("d/f", b"")
    os.symlink("f", one.root / "d" / "l")
    pack(one, tmp_path / "kept.tar", **BOUNDS)
    unpack(tmp_path / "kept.tar", other)
    for path in ("d", "d/f", "d/l"):
        status = (other.root / path).lstat()
        assert (status.st_uid, status.st_gid) == (1234, 1234)


def test_no_descriptor_is_kept(tmp_path):
    workspace = fresh(tmp_path)
    workspace.write("d/f", b"x")
    bad = archive(tmp_path / "bad.tar", ("d/f", tarfile.REGTYPE, ""), ("../x", tarfile.REGTYPE, ""))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        pack(workspace, tmp_path / f"{number}.tar", **BOUNDS)
        unpack(tmp_path / f"{number}.tar", workspace)
        with pytest.raises(SandboxError):
            unpack(bad, workspace)
        with pytest.raises(SandboxError):
            pack(workspace, tmp_path / "small.tar", max_bytes=0, max_files=9)
    assert len(os.listdir("/proc/self/fd")) == before
