"""What deltas save, as a picture."""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.picture import picture


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """How much smaller a coded delta is than a full version, over the share of changed elements, as PNG.

    Of each run the median step; beside it what int32 indices with raw bfloat16 values give, 1 / (3 rho), and
    the entropy bound.
    """
    with picture(path, size=(7, 4.5)) as (_, ((axes,),)):
        for number, model in enumerate(dict.fromkeys(run["model"] for run in runs)):
            found, color = [run for run in runs if run["model"] == model], f"C{number}"
            rho = [median(step["rho"] for step in run["steps"]) for run in found]
            gain = [_gain(run, "bytes_coded") for run in found]
            axes.plot(rho, gain, "o-", color=color, label=model)
            axes.plot(rho, [_gain(run, "bytes_bound") for run in found], "_", color=color, markersize=14)
            for run, place, height in zip(found, rho, gain, strict=True):
                axes.annotate(
                    f"lr {run['lr']:g}", (place, height), (6, 4), textcoords="offset points", fontsize=7
                )
        everywhere = np.geomspace(3e-3, 1e-1)
        axes.plot(
            everywhere,
            1 / (3 * everywhere),
            ":",
            color="gray",
            label="int32 + bfloat16 as they are: 1 / (3 rho)",
        )
        axes.plot([], [], "_", color="black", markersize=14, label="entropy bound of the run")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="rho: share of elements whose bits changed",
            ylabel="full bytes / delta bytes",
        )
        axes.xaxis.set_minor_formatter("")
        axes.set_title("A published step, smaller as a delta by")
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=8)


def _gain(run: dict[str, Any], of: str) -> float:
    """How much smaller than a full version, in the median step."""
    return median(step["bytes_full"] / max(step[of], 1) for step in run["steps"])
