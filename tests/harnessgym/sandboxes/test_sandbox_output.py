"""Output of commands: every byte as it was written, the last ones kept, in bounded memory, never a hang."""

import asyncio
import os
import resource
import subprocess
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.sandboxes.output import Output, PipeReader
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio


class Pieces:
    """Joins what it is shown, stream by stream."""

    def __init__(self):
        self.seen = {"stdout": b"", "stderr": b""}
        self.count = 0

    def __call__(self, stream, piece):
        self.seen[stream] += piece
        self.count += 1


@given(pieces=st.lists(st.binary(max_size=40), max_size=30), limit=st.integers(0, 100))
def test_the_last_bytes_are_kept_and_all_are_shown(pieces, limit):
    shown = Pieces()
    output = Output("stderr", limit, shown)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    assert output.data == whole[max(0, len(whole) - limit) :]
    assert output.truncated == (len(whole) > limit)
    assert output.size == len(whole)
    assert shown.seen == {"stdout": b"", "stderr": whole}


@pytest.mark.parametrize(("size", "count"), [(1 << 16, 40_000), (1, 300_000), (3 << 20, 20)])
def test_memory_stays_at_the_limit(size, count):
    """2.6 GB in large pieces, and many tiny ones, which must not each cost an object."""
    piece, limit = b"x" * size, 1 << 20
    tracemalloc.start()
    try:
        output = Output("stdout", limit)
        for _ in range(count):
            output.add(piece)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < limit * 1.2
    assert peak < limit * 1.5 + min(size, limit)
    assert output.size == size * count
    assert len(output.data) == min(limit, size * count)


async def test_a_background_child_that_keeps_stdout_open_does_not_hang_it():
    read, write = os.pipe()
    with subprocess.Popen(["sh", "-c", "printf begun; sleep 1000 & printf done"], stdout=write) as command:
        output = Output("stdout", 1000)
        drain = PipeReader(read, output)
        command.wait()
        began = time.monotonic()
        drain.finish()  # the sleep and this process still hold the pipe
        assert time.monotonic() - began < 1
    os.close(write)
    assert output.data == b"begundone"
    assert drain.ended


async def test_survivors_that_go_on_writing_do_not_hang_it():
    read, write = os.pipe()
    survivors = [subprocess.Popen(["cat", "/dev/zero"], stdout=write) for _ in range(3)]
    os.close(write)
    output = Output("stdout", 1000)
    try:
        drain = PipeReader(read, output)
        await asyncio.sleep(0.1)
        before = output.size
        drain.finish()
        assert output.size - before < 1 << 17  # what fits into a pipe, and one piece
    finally:
        for survivor in survivors:
            survivor.kill()
            survivor.wait()


async def test_a_flood_is_slowed_down_once_bytes_are_dropped():
    read, write = os.pipe()
    flood = subprocess.Popen(["cat", "/dev/zero"], stdout=write)
    os.close(write)
    output = Output("stdout", 1 << 20)
    drain = PipeReader(read, output)
    try:
        await asyncio.sleep(1)
    finally:
        flood.kill()
        flood.wait()
        drain.close()
        drain.close()
    assert 1 << 20 < output.size < 40 << 20


async def test_what_on_output_raises_ends_the_command_and_is_raised(tmp_path):
    def refuse(stream, piece):
        raise LookupError(f"no {piece.decode()} on {stream}")

    async with (
        ProcessBackend(ProcessSettings(workspace_root=tmp_path)) as backend,
        backend.open(Limits()) as sandbox,
    ):
        began = time.monotonic()
        with pytest.raises(LookupError, match="no x on stderr"):
            await sandbox.exec(["sh", "-c", "printf x >&2; sleep 1000"], on_output=refuse)
        assert time.monotonic() - began < 30
        assert (await sandbox.exec(["echo", "fine"])).stdout == b"fine\n"


async def test_bytes_come_as_they_were_written(backend):
    """Not UTF-8, NULs, ANSI colours, CRLF, progress bars made of carriage returns."""
    wild = (
        bytes(range(256))
        + b"\x1b[31mred\x1b[0m\r\n"
        + b"".join(b"\r%d%%" % n for n in range(100))
        + b"\xff\xfe\0\0"
    )
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("wild", wild)
        result = await sandbox.exec(["sh", "-c", "cat wild; cat wild >&2"])
        assert result.stdout == wild
        assert result.stderr == wild


async def test_a_very_long_line_comes_whole(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' a; echo; echo end"])
        assert result.stdout == b"a" * 5_000_000 + b"\nend\n"
        assert not result.stdout_truncated


async def test_200_mb_of_output_take_bounded_memory_and_the_end_is_kept(backend):
    async with backend.open(Limits(wall_s=100)) as sandbox:
        await sandbox.exec(["true"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await sandbox.exec(
            ["sh", "-c", "head -c 200000000 /dev/zero; echo the end"], max_output=1 << 20
        )
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result.ok
    assert result.stdout_truncated
    assert len(result.stdout) == 1 << 20
    assert result.stdout.endswith(b"\0the end\n")
    assert not result.stderr_truncated
    assert grown < 30 << 10  # KiB


async def test_every_piece_is_shown_in_order_dropped_ones_too(backend):
    pieces = Pieces()
    async with backend.open(Limits()) as sandbox:
        script = "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
        result = await sandbox.exec(["sh", "-c", script], max_output=100, on_output=pieces)
    for stream, word, kept in (("stdout", b"out", result.stdout), ("stderr", b"err", result.stderr)):
        whole = b"".join(b"%s %d\n" % (word, n) for n in range(2000))
        assert pieces.seen[stream] == whole
        assert kept == whole[-100:]
    assert result.stdout_truncated
    assert result.stderr_truncated


async def test_pieces_come_while_the_command_runs(backend):
    heard = asyncio.Event()
    async with backend.open(Limits()) as sandbox:
        wait = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second"
        run = asyncio.create_task(sandbox.exec(["sh", "-c", wait], on_output=lambda *_: heard.set()))
        async with asyncio.timeout(20):
            await heard.wait()
        assert not run.done()
        await sandbox.write("go", b"")
        assert (await run).stdout == b"first\nsecond\n"


async def test_a_child_left_behind_with_stdout_open_does_not_hold_the_result_back(backend):
    async with backend.open(Limits(wall_s=60)) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' & echo done"]
        )
        assert result.stdout == b"done\n"
        assert result.ok
        assert result.wall_s < 10


async def test_streams_that_the_command_closes_end_nothing_else(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo early; exec 1>&-; sleep 0.2; echo late >&2; exit 3"])
        assert (result.stdout, result.stderr, result.exit_code) == (b"early\n", b"late\n", 3)


async def test_nothing_at_all_may_be_kept(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["echo", "x"], max_output=0)
        assert result.stdout == b""
        assert result.stdout_truncated


async def test_a_command_reads_all_of_its_stdin_and_then_its_end(backend):
    sent = os.urandom(3_000_000)
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["cat"], stdin=sent)
        assert result.stdout == sent
        unread = await sandbox.exec(["true"], stdin=sent)  # a writer that fills a pipe would wait for ever
        assert unread.ok
        assert (await sandbox.exec(["cat"], stdin=b"")).stdout == b""
