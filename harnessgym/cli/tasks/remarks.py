"""What was left out of a set when it was read, and what was kept without effect, said below every answer."""

from typing import TYPE_CHECKING

from harnessgym.cli.traces.printed import notes

if TYPE_CHECKING:
    from harnessgym.task import TaskSet

_SHOWN = 8
_ALL = 1 << 30


def say_remarks(found: "TaskSet", *, every: bool = False) -> None:
    """On stderr, a line each; only the first few unless `every`."""
    from harnessgym.tasks.source import remarks_of

    out = notes()
    for line in remarks_of(found, _ALL if every else _SHOWN):
        out.print(line, markup=False)
