"""The output of long commands: a live display on a terminal, lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


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
