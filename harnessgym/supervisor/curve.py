"""Draws the learning curve of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw_curve(metrics: Sequence[dict[str, float]], summary: dict[str, Any], path: Path) -> None:
    """Write a PNG of the reward per training step, with the held-out success before and after."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    steps = [line["step"] for line in metrics]
    weighed = "trained_reward" in summary
    for key, label in (
        ("graded", "training success (temperature 1)"),
        ("reward", "trained reward: the weighted sum"),
    ):
        if weighed:
            axes.plot(steps, [line[key] for line in metrics], marker=".", label=label)
    if not weighed:
        axes.plot(
            steps, [line["reward"] for line in metrics], marker=".", label="training reward (temperature 1)"
        )
    ends = [0, max(steps, default=0)]
    # The two values often coincide: a ring with a dot that fits into it shows both.
    for key, label, style in (
        ("success", "held-out success, temperature 1", {"markersize": 13, "markerfacecolor": "none"}),
        ("greedy", "held-out success, greedy", {"markersize": 6}),
    ):
        values = [summary[f"{key}_before"], summary[f"{key}_after"]]
        if None not in values:
            color = f"C{len(axes.lines)}"
            axes.plot(
                ends,
                values,
                "o",
                label=label,
                color=color,
                markeredgewidth=2,
                clip_on=False,
                zorder=3,
                **style,
            )
    axes.set(xlabel="training step (= policy version)", ylabel="reward" if weighed else "success")
    if not weighed:
        axes.set(ylim=(-0.03, 1.03))
    axes.set_title(
        f"η = {summary['eta']}, largest staleness {summary['max_staleness']}, {summary['rollouts']} training "
        "rollouts"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
