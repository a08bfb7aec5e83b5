"""The live view of a run: a panel that refreshes on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from harnessgym.cli.run_panel import line, panel
from harnessgym.supervisor.progress import Progress

_LOOK_S = 1.0
_LINE_S = 10.0


class Dashboard:
    """Context manager; call it as often as you like, it looks and draws as often as is useful."""

    def __init__(self, console: Console, look: Callable[[], Progress]) -> None:
        self.console, self._look = console, look
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next = self._next_line = 0.0
        self._last_line = self._last_status = ""

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, message: str) -> None:
        """Print a line above the panel."""
        self.console.print(message, markup=False, highlight=False)

    def __call__(self, _: object = None) -> None:
        """Look and draw, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_S
            self.draw(self._look())

    def finish(self) -> Progress:
        """Look and draw a last time."""
        progress = self._look()
        self._next_line = 0.0
        self.draw(progress)
        return progress

    def draw(self, progress: Progress) -> None:
        """Show a look: at once on a terminal; elsewhere now and then, and when another phase begins."""
        if self.live is not None:
            self.live.update(panel(progress, self.console.width, self.console.height), refresh=True)
            return
        if time.monotonic() < self._next_line and progress.status == self._last_status:
            return
        self._next_line, self._last_status = time.monotonic() + _LINE_S, progress.status
        if (said := line(progress)) != self._last_line:
            self._last_line = said
            self.console.print(said, markup=False, highlight=False, soft_wrap=True)
