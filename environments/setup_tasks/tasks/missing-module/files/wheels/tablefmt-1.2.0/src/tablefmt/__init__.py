"""Plain text tables."""

from .cells import pad, width


def render(rows):
    widths = [width(column) for column in zip(*rows)]
    return "\n".join("  ".join(pad(cell, size) for cell, size in zip(row, widths)).rstrip() for row in rows)
