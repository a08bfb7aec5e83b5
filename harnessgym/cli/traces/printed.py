"""Output of commands: for people through `rich`, for programs as JSON.

Piped output has no colours and is not cut to a width.
"""

import json
import os
import sys
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

_PIPED_WIDTH = 400
"""Columns of piped output."""
_BRIEF = 400
"""Most characters of a shortened text."""
_BRIEF_LINES = 8


def console() -> "Console":
    """A console on stdout."""
    from rich.console import Console

    # Without a terminal rich would wrap tables at 80 columns and cut ids that scripts read.
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPED_WIDTH if piped else None, highlight=False)


def notes() -> "Console":
    """A console on stderr, for what is not part of the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress() -> "Progress":
    """A progress bar on stderr that disappears at the end. Not drawn without a terminal."""
    from rich.progress import Progress

    stderr = notes()
    return Progress(console=stderr, transient=True, disable=not stderr.is_terminal)


def print_json(value: Any) -> None:
    """Print one JSON value on stdout. Dataclasses become objects with their fields' names."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")


def plain_table(*heads: str, right: tuple[str, ...] = (), title: str | None = None) -> "Table":
    """A table without lines. Columns in `right` are right-aligned for numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for head in heads:
        table.add_column(
            head, justify="right" if head in right else "left", no_wrap=head in right or head == "id"
        )
    return table


def brief(text: str, *, full: bool = False) -> str:
    """The beginning of a text and how much is left."""
    if full:
        return text
    lines = text.split("\n")
    shown = "\n".join(lines[:_BRIEF_LINES])[:_BRIEF]
    left = len(text) - len(shown)
    return shown if left <= 0 else f"{shown} … {left:,} characters more (--full)"


def one_line(text: str, length: int = 60) -> str:
    """A text on one line of at most `length` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "items"):
        return dict(value)
    return str(value)
