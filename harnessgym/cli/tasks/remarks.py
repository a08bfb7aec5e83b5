"""What was left out of a set when it was read, and what was kept without effect, said below every answer."""

from typing import TYPE_CHECKING

from harnessgym.cli.traces.printed import notes

if TYPE_CHECKING:
    from harnessgym.task import TaskSet

_SHOWN = 8


def say_remarks(found: "TaskSet", *, every: bool = False) -> None:
    """On stderr, a line each; only the first few unless `every`."""
    from harnessgym.tasks.source import notes_of, problems_of

    out = notes()
    for title, lines in (("left out", problems_of(found)), ("note", notes_of(found))):
        shown = lines if every else lines[:_SHOWN]
        for line in shown:
            out.print(f"{title}: {line}", markup=False)
        if len(lines) > len(shown):
            out.print(f"{title}: ... and {len(lines) - len(shown)} more (harnessgym tasks list SPEC says all)", markup=False)
