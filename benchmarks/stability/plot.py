"""The benchmark's figures as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.picture import picture


def draw(parts: Sequence[dict[str, Any]], path: Path) -> None:
    """Final reward and collapse rate over the lag, a column for each task, with 95 % intervals, as PNG."""
    with picture(path, 2, len(parts), size=(5.5 * len(parts), 7), sharex="col") as (figure, axes):
        for column, part in zip(axes.T, parts, strict=True):
            lags = sorted({row["lag"] for row in part["rows"]})
            methods = dict.fromkeys(row["method"] for row in part["rows"])
            for number, method in enumerate(methods):
                rows = {row["lag"]: row for row in part["rows"] if row["method"] == method}
                places = [lags.index(lag) + 0.1 * (number - (len(methods) - 1) / 2) for lag in rows]
                for axis, name in zip(column, ("final", "collapse_rate"), strict=True):
                    found = [row[name] for row in rows.values()]
                    means = [each["mean"] for each in found]
                    ends = [
                        [0.0 if each[end] is None else abs(each[end] - each["mean"]) for each in found]
                        for end in ("low", "high")
                    ]
                    axis.errorbar(
                        places,
                        means,
                        yerr=ends,
                        marker="o",
                        markersize=4,
                        capsize=2,
                        linewidth=1,
                        label=method,
                    )
            seeds = part["rows"][0]["seeds"]
            column[0].set(title=f"{part['name']}, {seeds} seeds", ylabel="final reward")
            column[1].set(xlabel="lag, updates", ylabel="share of runs that collapsed", ylim=(-0.03, 1.03))
            column[1].set_xticks(range(len(lags)), [str(lag) for lag in lags])
            for axis in column:
                axis.grid(alpha=0.3)
        axes[0, 0].legend(fontsize=8)
        figure.suptitle("In process; 95 % intervals: Student's t over seeds, and Wilson's")
