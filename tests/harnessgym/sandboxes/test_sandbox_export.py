"""Exports: whatever a harness left as a trap, what comes out is data, bounded, and all that was left out
is named.
"""

import asyncio
import os
import shutil
import stat
import tempfile
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.sandboxes.exporting import printable, stays_inside
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio
ROOM = {"max_bytes": 50 << 20, "max_files": 10_000}


async def exported(backend, tmp_path, script, **bounds):
    """Runs a shell script and takes out what it left."""
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["sh", "-c", script])
        assert result.ok, result.stderr.decode()
        return await sandbox.export(tmp_path / "out", **{**ROOM, **bounds})


def below(folder):
    return sorted(
        os.path.relpath(os.path.join(at, name), folder)
        for at, inner, files in os.walk(folder)
        for name in inner + files
    )


async def test_data_comes_out_with_times_and_who_may_execute(backend, tmp_path):
    script = """
        mkdir -p a/b empty; echo one > a/one; echo two > a/b/two; chmod 755 a/one; chmod 640 a/b/two
        chmod u+s a/one; touch -d '2001-02-03 04:05:06.123456789 UTC' a/one a/b
    """
    export = await exported(backend, tmp_path, script)
    out = tmp_path / "out"
    assert below(out) == ["a", "a/b", "a/b/two", "a/one", "empty"]
    assert (export.files, export.size, export.left_out, export.overflow) == (2, 8, (), "")
    assert (out / "a/one").read_text() == "one\n"
    assert stat.S_IMODE((out / "a/one").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "a/b/two").stat().st_mode) == 0o644
    assert (out / "a/one").stat().st_mtime_ns == 981173106_123456789
    assert (out / "a/b").stat().st_mtime_ns == 981173106_123456789


async def test_links_come_out_only_when_they_stay_inside(backend, tmp_path):
    script = """
        mkdir -p d/e; echo x > d/file
        ln -s d/file to_file; ln -s ../file d/e/up; ln -s d to_folder; ln -s to_folder/file through; ln -s nowhere dangling
        ln -s /etc/passwd absolute; ln -s ../../etc/passwd above; ln -s "$PWD/d/file" own
        ln -s .. d/parent; ln -s d/parent/../secret physical; ln -s to_folder/../../secret behind
        ln -s circle circle
    """
    export = await exported(backend, tmp_path, script)
    kept = {
        path: os.readlink(tmp_path / "out" / path)
        for path in below(tmp_path / "out")
        if (tmp_path / "out" / path).is_symlink()
    }
    assert kept == {
        "to_file": "d/file",
        "d/e/up": "../file",
        "to_folder": "d",
        "through": "to_folder/file",
        "dangling": "nowhere",
        "d/parent": "..",
    }
    assert export.left_out == ("above", "absolute", "behind", "circle", "own", "physical")


goals = st.lists(st.sampled_from(["a", "b", "d", "..", ".", "e"]), min_size=1, max_size=5).map("/".join)
places = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "d/e/b"])


@settings(deadline=None, max_examples=200)
@given(links=st.dictionaries(places, goals, min_size=1, max_size=6))
def test_a_link_that_is_kept_leads_nowhere_else_for_the_kernel_either(links):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder)) / "root"
        (root / "d" / "e").mkdir(parents=True)
        known = {tuple(place.split("/")): goal for place, goal in links.items()}
        for place, goal in links.items():
            os.symlink(goal, root / place)
        for place in links:
            reached = Path(os.path.realpath(root / place))
            if stays_inside(tuple(place.split("/")), known):
                assert reached.is_relative_to(root)


async def test_what_is_no_data_is_left_out_and_named(backend, tmp_path):
    script = """
        mkfifo pipe "$(printf 'two\\nlines')" "$(printf 'bad\\377')"; echo x > file
    """
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("listen.py", b"import socket; socket.socket(socket.AF_UNIX).bind('listener')")
        assert (await sandbox.exec(["python", "listen.py"])).ok
        assert (await sandbox.exec(["sh", "-c", script])).ok
        export = await sandbox.export(tmp_path / "out", **ROOM)
    assert export.left_out == ("bad\\xff", "listener", "pipe", "two\\nlines")
    assert below(tmp_path / "out") == ["file", "listen.py"]
    assert "".join(export.left_out).encode().isascii()


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes devices")
def test_devices_are_left_out(tmp_path):
    workspace = Workspace(tmp_path / "w", None, 100)
    workspace.make()
    os.mknod(workspace.root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    assert workspace.export(tmp_path / "out", 1000, 10).left_out == ("zero",)


async def test_hard_links_are_copies(backend, tmp_path):
    export = await exported(backend, tmp_path, "echo x > a; ln a b")
    assert (export.files, export.size) == (2, 4)
    assert (tmp_path / "out" / "a").stat().st_nlink == 1


async def test_strange_names_come_out_as_they_are(backend, tmp_path):
    names = [
        "new\nline",
        "tab\t",
        "-rf",
        " ",
        "\\",
        "*",
        "e\u0301",
        "\u00e9",
        "Case",
        "case",
        "\u202eevil",
        "...",
        "a:b",
    ]
    async with backend.open(Limits()) as sandbox:
        for name in names:
            await sandbox.write(name, name.encode())
        assert (await sandbox.exec(["sh", "-c", "echo x > \"$(printf 'latin-\\351')\""])).ok
        export = await sandbox.export(tmp_path / "out", **ROOM)
    assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == sorted(
        [*(name.encode() for name in names), b"latin-\xe9"]
    )
    assert unicodedata.normalize("NFC", names[6]) == names[7]
    assert export.files == len(names) + 1


@given(st.binary().map(os.fsdecode))
def test_what_is_left_out_is_named_on_one_line_of_valid_text(path):
    named = printable(path)
    assert named.encode().decode().isprintable()


async def test_a_sparse_file_cannot_fill_the_disk(backend, tmp_path):
    export = await exported(backend, tmp_path, "truncate -s 200M bomb; echo x > after", max_bytes=1 << 20)
    assert "1048576 bytes" in export.overflow
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "out").rglob("*")) < 1 << 20


async def test_holes_stay_holes(backend, tmp_path):
    export = await exported(
        backend, tmp_path, "printf start > holes; truncate -s 20M holes; printf end >> holes"
    )
    out = tmp_path / "out" / "holes"
    assert export.size == out.stat().st_size == (20 << 20) + 3
    assert out.stat().st_blocks * 512 < 1 << 20
    with out.open("rb") as file:
        assert file.read(6) == b"start\0"
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"\0end"


async def test_too_many_bytes_stop_it(backend, tmp_path):
    export = await exported(
        backend, tmp_path, "for n in 1 2 3 4 5; do head -c 400000 /dev/zero > $n; done", max_bytes=1 << 20
    )
    assert "bytes" in export.overflow
    assert (export.files, export.size) == (2, 800_000)


LINKS = "python -c 'import os; [os.symlink(\"x\", str(n)) for n in range(3000)]'"


@pytest.mark.parametrize("make", ["touch $(seq 3000)", "mkdir $(seq 3000)", LINKS])
async def test_too_many_entries_stop_it(backend, tmp_path, make):
    export = await exported(backend, tmp_path, make, max_files=2000)
    assert "more than 2000 files" in export.overflow
    assert len(os.listdir(tmp_path / "out")) <= 2000


DEPTH_BOMB = """
import os
for _ in range(5000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
open("bottom", "w").close()
"""


async def test_a_folder_5000_deep_stops_it_and_is_removed(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("bomb.py", DEPTH_BOMB.encode())
        assert (await sandbox.exec(["python", "bomb.py"])).ok
        export = await sandbox.export(tmp_path / "out", **ROOM)
        folder = sandbox.workspace
    assert "folders" in export.overflow
    assert export.files == 1
    assert not folder.exists()


async def test_what_is_made_unreadable_comes_out(backend, tmp_path):
    export = await exported(backend, tmp_path, "mkdir d; echo x > d/f; chmod 0 d/f d")
    assert (tmp_path / "out" / "d" / "f").read_text() == "x\n"
    assert export.left_out == ()


async def test_a_file_that_grows_meanwhile_is_bounded(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        grow = "while :; do head -c 100000 /dev/zero >> grows; [ $(stat -c %s grows) -gt 20000000 ] && : > grows; done"
        run = asyncio.create_task(sandbox.exec(["sh", "-c", grow]))
        for number in range(10):
            export = await sandbox.export(tmp_path / str(number), max_bytes=3_000_000, max_files=10)
            assert export.size <= 3_000_000
            assert sum(path.stat().st_size for path in (tmp_path / str(number)).iterdir()) <= 3_000_000
        await sandbox.kill_all()
        assert (await run).signal == 9


SWAP = """
import ctypes, os, sys
secret = sys.argv[1]
os.mkdir("folder")
for name in ("file", "folder/secret"):
    open(name, "w").write("mine")
os.symlink(secret + "/secret", "a link")
os.symlink(secret, "another")
exchange = ctypes.CDLL(None).renameat2
while True:
    for one, other in ((b"file", b"a link"), (b"folder", b"another")):
        exchange(-100, one, -100, other, 2)
"""


async def test_files_swapped_for_links_meanwhile_lead_nowhere(backend, tmp_path):
    secret = tmp_path / "ours"
    secret.mkdir()
    (secret / "secret").write_text("ours")
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("swap.py", SWAP.encode())
        run = asyncio.create_task(sandbox.exec(["python", "swap.py", str(secret)]))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            await sandbox.export(tmp_path / "out", **ROOM)
            for path in (tmp_path / "out").rglob("*"):
                assert not path.is_symlink()
                assert not path.is_file() or path.read_text() != "ours"
            shutil.rmtree(tmp_path / "out")
        await sandbox.kill_all()
        await run


async def test_a_folder_that_is_there_is_not_written_into(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        with pytest.raises(FileExistsError):
            await sandbox.export(tmp_path, **ROOM)


def test_no_descriptor_is_kept(tmp_path):
    workspace = Workspace(tmp_path / "w", None, 100)
    workspace.make()
    for number in range(20):
        workspace.write(f"{'d/' * number}f", b"xxxxxxxxxx")
    before = len(os.listdir("/proc/self/fd"))
    for number, (size, files) in enumerate([(1000, 1000), (100, 1000), (1000, 10)]):
        assert bool(workspace.export(tmp_path / str(number), size, files).overflow) == (number > 0)
    assert len(os.listdir("/proc/self/fd")) == before
