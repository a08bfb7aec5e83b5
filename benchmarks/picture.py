"""What a benchmark draws, as a PNG file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], **shared: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure of `size` inches with axes [rows, columns], which needs no screen; written to `path` when
    the block ends.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, dpi=110, squeeze=False, **shared)
    try:
        yield figure, axes
        figure.tight_layout()
        figure.savefig(path)
    finally:
        plt.close(figure)
