"""Results of rollouts: one line each, and the reported numbers.

`pass_at_k` is the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code"
(2021), eq. 1.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harnessgym.metrics.interval import mean_with_interval
from harnessgym.store.rollout_states import RolloutState


def line_of(state: RolloutState) -> dict[str, Any]:
    """One rollout as a JSON object of `results.jsonl`."""
    return {
        "task": state.task,
        "slot": state.slot,
        "reward": state.reward,
        "rewards": state.rewards,
        "verdict": state.verdict,
        "cause": state.cause,
        "stop_reason": state.stop_reason,
        "detail": state.detail,
        "attempts": state.attempt + 1,
        "seed": state.seed,
        "calls": state.calls,
        "tokens": state.tokens,
        "latencies": state.latencies,
        "rollout": state.id,
    }


def written(states: Iterable[RolloutState]) -> str:
    """Lines of `results.jsonl`."""
    return "".join(json.dumps(line_of(state), ensure_ascii=False) + "\n" for state in states)


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Estimated chance that one of k samples passes, given `passed` of `samples`; 1 ≤ k ≤ samples."""
    # 1 - C(n-c, k) / C(n, k) as a product, because the binomials overflow for large n.
    if samples - passed < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(samples - passed + 1, samples + 1))


def graded_by_task(states: Iterable[RolloutState]) -> dict[str, list[float]]:
    """Rewards by task. A tampered rollout has reward 0; one without a verdict is left out."""
    out: dict[str, list[float]] = {}
    for state in states:
        if state.status == "finished" and state.reward is not None:
            out.setdefault(state.task, []).append(state.reward)
    return out


def summarise(states: Sequence[RolloutState], pass_reward: float) -> dict[str, Any]:
    """The numbers of `summary.json`. Rewards from `pass_reward` on pass; intervals are over tasks."""
    by_task = graded_by_task(states)
    most = max((len(rewards) for rewards in by_task.values()), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= most]
    passes = {f"pass@{k}": mean_with_interval(passes_of(by_task, k, pass_reward)).as_json() for k in ks}
    graded = sum(len(rewards) for rewards in by_task.values())
    return {
        "rollouts": len(states),
        "graded": graded,
        "not_graded": len(states) - graded,
        "tasks": len({state.task for state in states}),
        "reward": mean_with_interval([sum(rewards) / len(rewards) for rewards in by_task.values()]).as_json(),
        **passes,
        "passes_from": pass_reward,
        "verdicts": _counted(state.verdict for state in states),
        "stop_reasons": _counted(state.stop_reason for state in states),
        "causes": _counted(state.cause for state in states),
        "attempts": sum(state.attempt + 1 for state in states),
        "calls": sum(state.calls for state in states),
        "tokens": sum(state.tokens for state in states),
        "latencies": _medians(state.latencies for state in states),
    }


def passes_of(by_task: Mapping[str, Sequence[float]], k: int, pass_reward: float) -> list[float]:
    """pass@k of each task with at least k graded rollouts."""
    return [
        pass_at_k(len(rewards), sum(reward >= pass_reward for reward in rewards), k)
        for rewards in by_task.values()
        if len(rewards) >= k
    ]


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value is not None).items()))


def _medians(rollout_latencies: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds by stage."""
    by_stage: dict[str, list[float]] = {}
    for latencies in rollout_latencies:
        for stage, seconds in latencies.items():
            by_stage.setdefault(stage, []).append(seconds)
    return {stage: round(sorted(values)[len(values) // 2], 4) for stage, values in sorted(by_stage.items())}
