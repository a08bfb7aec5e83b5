"""The summary of a run, computed from its store: the gain, its cost and an account of every token. Draws the
learning curve.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from harnessgym.errors import StoreError
from harnessgym.metrics.interval import paired_difference
from harnessgym.reward import weights_of
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rewards import TOTAL
from harnessgym.traces.token_accounting import account

_PURPOSES = ("before_sampled", "before_greedy", "after_sampled", "after_greedy")


def summarise(store: TraceStore, folder: RunFolder, stages: dict[str, float], sandbox: str) -> dict[str, Any]:
    """The content of `summary.json`. Counts cover training rollouts; evaluation has its own key."""
    return store.read(lambda conn: _summarise(conn, folder, stages, sandbox))


def _summarise(conn: Connection, folder: RunFolder, stages: dict[str, float], sandbox: str) -> dict[str, Any]:
    run = run_of(conn, folder)
    config = folder.config()
    if run is None:
        raise StoreError(f"{folder.root} has no run in its store.")
    policy_id = policies.register(conn, run.id, config.policy.name)
    published = policies.versions(conn, policy_id)
    tokens = account(conn, run.id)
    values = {name: rollouts.rewards_of(conn, run.id, name) for name in _PURPOSES}
    gain = paired_difference(*_paired(conn, run.id)).as_json()
    finished = runs.finished_rollouts(conn, run.id, "train")
    weights = weights_of(config)
    weighed = {} if weights is None else {"trained_reward": _weighed(conn, run.id, weights.formula)}
    several = {"policies": _by_policy(conn, run.id, tokens.trained_by_policy)} if config.policies else {}
    return (several | weighed) | {
        "run": run.id,
        "steps": max((item.step for item in published if not item.orphaned), default=0),
        "success_before": _mean(values["before_sampled"]),
        "success_after": _mean(values["after_sampled"]),
        "gain": gain["mean"],
        "gain_ci95": [gain["low"], gain["high"]],
        "greedy_before": _mean(values["before_greedy"]),
        "greedy_after": _mean(values["after_greedy"]),
        "rollouts": finished,
        "calls": tokens.calls,
        "rollouts_per_s": round(finished / stages["training"], 2) if stages.get("training") else None,
        "tokens_sampled": tokens.sampled,
        "tokens_trained": tokens.trained,
        "tokens_replayed": tokens.replayed,
        "tokens_excluded": tokens.excluded,
        "excluded_by_reason": dict(tokens.excluded_by_reason),
        "eta": config.trainer.max_staleness,
        "max_staleness": max(tokens.staleness, default=0),
        "staleness_histogram": {str(lag): count for lag, count in sorted(tokens.staleness.items())},
        "versions_published": len(published),
        "bytes_full": sum(item.bytes for item in published if item.kind == "full"),
        "bytes_delta": sum(item.bytes for item in published if item.kind == "delta") or None,
        "wall_s": {name: round(seconds, 2) for name, seconds in stages.items()},
        "sandbox": sandbox,
        "evaluation": {
            "tasks": len(values["before_sampled"]),
            "rollouts": {name: len(rewards) for name, rewards in values.items()},
            "not_graded": {
                name: runs.slots(conn, run.id, name) - len(rewards) for name, rewards in values.items()
            },
            "failed_attempts": {name: runs.failed_rollouts(conn, run.id, name) for name in _PURPOSES},
        },
        "stop_reasons": runs.stop_reasons(conn, run.id),
        "seed": config.seed,
        "reward_shuffle": config.trainer.reward_shuffle,
    }


def _weighed(conn: Connection, run_id: str, formula: str) -> dict[str, Any]:
    """The formula of the weighted reward, and its means on the held-out tasks."""
    means = {name: _mean(rollouts.rewards_of(conn, run_id, name, TOTAL)) for name in _PURPOSES}
    return {"formula": formula} | means


def _by_policy(conn: Connection, run_id: str, trained: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Versions, trained tokens and bytes of each policy by name."""
    out = {}
    for name, policy_id in policies.of_run(conn, run_id).items():
        versions = policies.versions(conn, policy_id)
        written = sum(version.bytes for version in versions)
        out[name] = {
            "versions_published": len(versions),
            "tokens_trained": trained.get(policy_id, 0),
            "bytes": written,
        }
    return out


def _paired(conn: Connection, run_id: str) -> tuple[list[float], list[float]]:
    """Mean rewards before and after by task, for the tasks that were graded both times."""

    def judged(purpose: str) -> dict[str, float]:
        groups = rollouts.complete_groups(conn, run_id, purpose, sys.maxsize)
        return {group.task_id: sum(m.reward for m in group.members) / len(group.members) for group in groups}

    before, after = judged("before_sampled"), judged("after_sampled")
    common = [task for task in before if task in after]
    return [before[task] for task in common], [after[task] for task in common]


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


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
