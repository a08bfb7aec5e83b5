"""The peer: the plain docker command line, doing what people do without a sandbox runner."""

import asyncio
import subprocess

from benchmarks.sandbox.timing import Clock, Figures, repeat

_HARDENED = (
    "--network",
    "none",
    "--cap-drop",
    "ALL",
    "--pids-limit",
    "256",
    "--memory",
    "256m",
    "--read-only",
)


async def measure(image: str, count: int) -> dict[str, Figures]:
    """`docker run --rm` of a hardened container, and `docker exec` in one that runs."""
    out = {
        "docker run --rm (cold start, plain CLI)": await repeat(
            count, lambda: _timed("run", "--rm", *_HARDENED, image, "true")
        )
    }
    name = _docker("run", "-d", *_HARDENED, image, "sleep", "600")
    try:
        out["docker exec (plain CLI)"] = await repeat(count, lambda: _timed("exec", name, "true"))
    finally:
        _docker("rm", "--force", name)
    return out


async def _timed(*words: str) -> float:
    clock = Clock()
    await asyncio.to_thread(_docker, *words)
    return clock()


def _docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()
