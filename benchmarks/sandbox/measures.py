"""What a sandbox costs: opening it, a command in it, a diff laid into it, a whole graded rollout without a
model.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.sandbox.timing import Clock, Figures, repeat, spread
from harnessgym.grading.grade import judge
from harnessgym.sandbox import Equipment, Sandbox, SandboxBackend
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.task import Limits, Task

DIFF_BYTES = 10 << 20
_DIFF_FILES = 40
_LIMITS = Limits(memory_mb=256, disk_mb=64, processes=64, wall_s=30.0)
_SOLVE = ["sh", "-c", "echo $((6 * 7)) > answer.txt"]
_CHECK = {"kind": "io", "command": ["cat", "answer.txt"], "cases": [{"stdout": "42\n"}]}


@asynccontextmanager
async def backend(name: str, folder: Path, *, spares: int) -> AsyncIterator[SandboxBackend]:
    """A backend as a node opens it; `spares` is how many containers Docker keeps ready."""
    made: SandboxBackend
    if name == "docker":
        made = Docker(DockerSettings(workspace_root=folder / name, spares=spares))
    else:
        made = Bubblewrap(BubblewrapSettings(workspace_root=folder / name))
    async with made as opened:
        yield opened


async def starts(opened: SandboxBackend, count: int, pause_s: float) -> Figures:
    """Opening a sandbox, up to the end of a first command that does nothing. `pause_s` lies between two
    openings.
    """

    async def once() -> float:
        await asyncio.sleep(pause_s)
        clock = Clock()
        async with opened.open(_LIMITS) as sandbox:
            await sandbox.exec(["true"])
            return clock()

    return await repeat(count, once)


async def claims(opened: SandboxBackend, count: int, pause_s: float) -> Figures:
    """Opening alone. With spares and a pause long enough to make one, that is a warm claim; `warm` says
    how many were.
    """

    async def once() -> float:
        await asyncio.sleep(pause_s)
        clock = Clock()
        async with opened.open(_LIMITS):
            return clock()

    figures = await repeat(count, once)
    return {**figures, "warm": float(opened.pool.warm)} if isinstance(opened, Docker) else figures


async def commands(opened: SandboxBackend, count: int) -> Figures:
    """A command that does nothing, in an open sandbox."""
    async with opened.open(_LIMITS) as sandbox:

        async def once() -> float:
            clock = Clock()
            await sandbox.exec(["true"])
            return clock()

        return await repeat(count, once)


async def diffs(opened: SandboxBackend, count: int, pause_s: float) -> Figures:
    """A further sandbox that continues from a snapshot of 10 MiB in 40 files."""
    async with opened.open(_LIMITS) as sandbox:
        await _fill(sandbox)
        snapshot = await sandbox.snapshot()

        async def once() -> float:
            await asyncio.sleep(pause_s)
            clock = Clock()
            further = await sandbox.fork(snapshot)
            took = clock()
            await further.aclose()
            return took

        return await repeat(count, once)


async def graded(opened: SandboxBackend, count: int, width: int) -> Figures:
    """Trivial graded rollouts per second, `width` at a time: open, one command, judged in a fresh sandbox
    by one `io` test.
    """
    task = Task("answer", "Write 42.", limits=_LIMITS, grader="checks", metadata={"tests": [_CHECK]})
    gate = asyncio.Semaphore(width)

    async def once() -> float:
        async with gate:
            clock = Clock()
            async with opened.open(task.limits) as sandbox:
                await sandbox.exec(_SOLVE)
                grade = await judge(task, sandbox, lambda: opened.open(task.limits, Equipment(proxy=False)))
            if grade.rewards["reward"] != 1.0:
                raise SystemExit(f"A trivial rollout was graded {grade}.")
            return clock()

    await asyncio.gather(*(once() for _ in range(width)))
    clock = Clock()
    took = await asyncio.gather(*(once() for _ in range(count)))
    return {"rollouts_per_s": count / clock(), **spread(took)}


async def _fill(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory() as name:
        for number in range(_DIFF_FILES):
            (Path(name) / f"{number:02d}.bin").write_bytes(os.urandom(DIFF_BYTES // _DIFF_FILES))
        await sandbox.upload(Path(name), "diff")
