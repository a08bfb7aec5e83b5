"""The live view of a run: a panel on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console

from harnessgym.cli.live_view import LiveView
from harnessgym.cli.run_panel import line, panel
from harnessgym.supervisor.progress import RunProgress

_LOOK_S = 1.0
_LINE_S = 10.0


class Dashboard(LiveView):
    """Looks at a run and draws it. It may be called at any rate and limits its own."""

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
