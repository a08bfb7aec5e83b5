"""The gymnasium environments: what a reset, a step and eight at once cost, and what a thousand steps leave
behind.
"""

from collections.abc import Iterator

from benchmarks.sandbox.timing import Figures
from benchmarks.tasks import envs
from harnessgym.registry import load
from tests.support import left_behind

SANDBOXES = ("bubblewrap", "docker")
_PLAYED = (
    ("bubblewrap", "harnessgym/SWE-v0", "shell"),
    ("bubblewrap", "harnessgym/Code-v0", ""),
    ("bubblewrap", "harnessgym/Harness-v0", ""),
    ("docker", "harnessgym/SWE-v0", "shell"),
)
"""Sandbox, id, and other tasks than the id's own: an episode of `swe` is mostly its tests, and takes ten
times as long."""


def costs(*, quick: bool) -> Iterator[tuple[str, Figures]]:
    """Rows of `benchmarks.tasks.envs`. Raises RuntimeError where a sandbox cannot be used here."""
    for sandbox in SANDBOXES:
        _usable(sandbox)
        for row in envs.measure("swe", [sandbox], 5 if quick else 50):
            yield f"{row.what} ({row.sandbox})", row.figures


def leavings(*, quick: bool) -> Iterator[tuple[str, Figures]]:
    """What there is more of after than before, by environment, agent and sandbox."""
    for sandbox, name, tasks in _PLAYED:
        _usable(sandbox)
        for row in left_behind.rows(4 if quick else 1_000, ((name, tasks),), (sandbox,)):
            what = f"{row.id}{f' on {tasks}' if tasks else ''}, {row.agent} ({row.sandbox})"
            more = sum(max(0, row.after[each] - row.before[each]) for each in row.before)
            yield what, {"left_behind": float(more), "steps": float(row.steps), "seconds": row.seconds}


def _usable(sandbox: str) -> None:
    why = load("sandbox", sandbox).unavailable()
    if why is not None:
        raise RuntimeError(f"{sandbox}: {why}")
