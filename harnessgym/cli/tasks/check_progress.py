"""The live view of a check: a bar with tasks a minute and the time that is left, on a terminal; else a
line now and then.
"""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harnessgym.cli.traces.printed import notes

if TYPE_CHECKING:
    from harnessgym.validation.task_check import Progress

_LINE_S = 15.0
"""Between two lines where there is no terminal."""


class CheckProgress:
    """Context manager; call it with the progress as often as you like."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = notes()
        columns = (
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TextColumn("{task.description}", style="dim"),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._shown = self._bar.add_task("", total=None, facts="")
        self._next = time.monotonic() + _LINE_S

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: "Progress") -> None:
        """Draw."""
        from rich.markup import escape

        facts = said(progress)
        doing = escape(progress.doing[: max(20, self._console.width - 80)])
        self._bar.update(
            self._shown, total=progress.runs, completed=progress.done, facts=facts, description=doing
        )
        if not self._console.is_terminal and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_S
            self._console.print(facts, markup=False)


def said(progress: "Progress") -> str:
    """A check at one moment, on one line."""
    eta = "" if progress.eta_s is None else f", {_time(progress.eta_s)} left"
    runs = f"{progress.done:,}/{progress.runs:,} runs"
    return f"{runs}, {progress.finished:,}/{progress.tasks:,} tasks done, {progress.tasks_per_minute:.1f} tasks/min{eta}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7_200
        else f"{seconds / 3_600:.1f} h"
    )
