"""The benchmark's figures as a picture."""

from pathlib import Path
from typing import Any

from benchmarks.picture import picture


def draw(parts: dict[str, Any], path: Path) -> None:
    """Throughput of every arm of the part `arms` beside its bound, and the curves over workers, as PNG:
    simulated, it says.
    """
    with picture(path, columns=2, size=(12, 4.5)) as (_, ((left, right),)):
        rows = parts["arms"]["rows"]
        names = list(rows)
        rates = [rows[name]["rollouts_per_s"] for name in names]
        middle = [rate["median"] for rate in rates]
        around = [
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ]
        left.bar(
            names,
            middle,
            yerr=around,
            color="#4878a8",
            capsize=3,
            label="throughput, median and 95 % interval",
        )
        bounds = [rows[name]["bound_rollouts_per_s"]["median"] for name in names]
        left.plot(
            names,
            bounds,
            linestyle="",
            marker="_",
            markersize=22,
            markeredgewidth=2,
            color="#c44",
            label="bound",
        )
        for place, name in enumerate(names):
            left.annotate(
                f"{rows[name]['mean_staleness']['median']:.1f}",
                (place, 0.04),
                ha="center",
                fontsize=8,
                color="w",
            )
        left.set(
            ylabel="trained rollouts per virtual second",
            title="8 workers, batches of 256 (simulated; in bars: staleness)",
        )
        left.tick_params(axis="x", rotation=30)
        left.legend(loc="upper left", fontsize=8)
        for part, arm, label in (
            ("same_batch", "sync", "sync, batches of 256"),
            ("same_batch", "eta-4", "η = 4, batches of 256"),
            ("larger_batch", "eta-4", "η = 4, batches of 16 a worker"),
        ):
            curve = parts.get(part, {"rows": {}})["rows"]
            found = {int(name.split()[1]): row for name, row in curve.items() if name.startswith(arm)}
            if not found:
                continue
            points = [row["rollouts_per_s"]["median"] for row in found.values()]
            (line,) = right.plot(list(found), points, marker=".", label=label)
            bound = [row["bound_rollouts_per_s"]["median"] for row in found.values()]
            right.plot(list(found), bound, linestyle=":", color=line.get_color())
        right.set(xscale="log", yscale="log", xlabel="workers", ylabel="trained rollouts per virtual second")
        right.set_title("One machine to a cluster (simulated; dotted: bounds)")
        right.grid(alpha=0.3)
        right.legend(fontsize=8)
