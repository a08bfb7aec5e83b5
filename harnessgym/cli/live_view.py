"""The output of long commands such as `train`: a live panel on a terminal, else a line every few seconds."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from harnessgym.cli.run_panel import line, panel
from harnessgym.supervisor.progress import RunProgress


class LiveView:
    """Context manager that shows a live display."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        """None without a terminal."""
        self._last_line = ""

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def redraw(self, shown: RenderableType) -> None:
        """Replace the display. Only on a terminal."""
        assert self.live is not None
        self.live.update(shown, refresh=True)

    def add_line(self, text: str) -> None:
        """Print a line unless it equals the last one."""
        if text != self._last_line:
            self._last_line = text
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


_LOOK_S = 1.0
_LINE_S = 10.0


class Dashboard(LiveView):
    """Shows a run's progress. May be called at any rate; it redraws only every so often."""

    def __init__(self, console: Console, look: Callable[[], RunProgress]) -> None:
        super().__init__(console)
        self._look = look
        self._next = self._next_line = 0.0
        self._last_status = ""

    def say(self, message: str) -> None:
        """Print a line above the panel."""
        self.console.print(message, markup=False, highlight=False)

    def __call__(self, _: object = None) -> None:
        """Look and draw if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_S
            self.draw(self._look())

    def finish(self) -> RunProgress:
        """Look and draw for the last time."""
        progress = self._look()
        self._next_line = 0.0
        self.draw(progress)
        return progress

    def draw(self, progress: RunProgress) -> None:
        """Show progress: always on a terminal; elsewhere every few seconds and when the phase changes."""
        if self.live is not None:
            self.redraw(panel(progress, self.console.width, self.console.height))
            return
        if time.monotonic() < self._next_line and progress.status == self._last_status:
            return
        self._next_line = time.monotonic() + _LINE_S
        self._last_status = progress.status
        self.add_line(line(progress))
