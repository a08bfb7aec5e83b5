"""Scores of an evaluation: each policy alone, and paired with the first over tasks both were graded on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.batch_rollout.results import graded_by_task, passes_of
from harnessgym.metrics.interval import Interval, mean_with_interval, paired_difference
from harnessgym.store.rollout_states import RolloutState

PASS_REWARD = 1.0
"""Least reward with which a rollout passes."""
FEW_TASKS = 20
"""With fewer tasks percentile bootstrap intervals are too narrow: they miss the truth more often than one
time in twenty."""
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """One policy's score on all tasks. Intervals are over tasks; every task has the same weight."""

    reward: Interval
    """Mean over tasks of a task's mean reward."""
    pass_at: Mapping[int, Interval]
    """pass@k by k, over the tasks with at least k graded rollouts."""
    pass_tasks: Mapping[int, int]
    """Number of those tasks by k."""
    rollouts: int
    graded: int
    tokens: float | None
    """Sampled tokens per graded rollout."""
    causes: Mapping[str, int]
    """Causes of failure, of the infrastructure and of the agents."""
    failures: Mapping[str, int]
    """The part of `causes` from rollouts that could not be graded."""
    run_again: int
    """Attempts that ended with an infrastructure failure and were retried."""

    def as_json(self) -> dict[str, Any]:
        """The score's part of `eval.json`."""
        return {
            "reward": self.reward.as_json(),
            **{
                f"pass@{k}": interval.as_json() | {"tasks": self.pass_tasks[k]}
                for k, interval in self.pass_at.items()
            },
            "rollouts": self.rollouts,
            "graded": self.graded,
            "not_graded": self.rollouts - self.graded,
            "not_graded_because": dict(self.failures),
            "run_again": self.run_again,
            "tokens_per_rollout": None if self.tokens is None else round(self.tokens, 2),
            "causes": dict(self.causes),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy compared with another task by task."""

    difference: Interval
    """Mean over tasks of the difference in reward."""
    better: int
    """Tasks on which it has more reward."""
    worse: int
    equal: int
    left_out: int
    """Tasks on which one of the two policies has no graded rollout."""

    @property
    def tasks(self) -> int:
        """Number of compared tasks."""
        return self.better + self.worse + self.equal

    @property
    def gained(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.difference.low is not None and self.difference.low > 0

    @property
    def verdict(self) -> str:
        """The result in words."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "too few tasks"
        return "better" if low > 0 else "worse" if high < 0 else "no improvement shown"

    def as_json(self) -> dict[str, Any]:
        """The comparison's part of `eval.json`."""
        counts = {"tasks": self.tasks, "better": self.better, "worse": self.worse, "equal": self.equal}
        return {
            "difference": self.difference.as_json(),
            **counts,
            "left_out": self.left_out,
            "verdict": self.verdict,
        }


def score(states: Sequence[RolloutState], k: int) -> PolicyScore:
    """Score the rollouts of one policy, with pass@1 and pass@k."""
    by_task = graded_by_task(states)
    passes = {each: passes_of(by_task, each, PASS_REWARD) for each in sorted({1, k})}
    failed = [state for state in states if state.status != "finished"]
    graded = [state for state in states if state.status == "finished" and state.reward is not None]
    return PolicyScore(
        reward=mean_with_interval(list(_means(by_task).values())),
        pass_at={each: mean_with_interval(pass_rates) for each, pass_rates in passes.items()},
        pass_tasks={each: len(pass_rates) for each, pass_rates in passes.items()},
        rollouts=len(states),
        graded=len(graded),
        tokens=sum(state.tokens for state in graded) / len(graded) if graded else None,
        causes=_causes(states),
        failures=_causes(failed),
        run_again=sum(state.attempt for state in states),
    )


def compare(before: Sequence[RolloutState], after: Sequence[RolloutState]) -> Comparison:
    """Compare `after` with `before` on the same tasks."""
    return compare_rewards(
        _means(graded_by_task(before)),
        _means(graded_by_task(after)),
        {state.task for state in (*before, *after)},
    )


def compare_rewards(before: Mapping[str, float], after: Mapping[str, float], asked: set[str]) -> Comparison:
    """Compare mean rewards by task. `asked` holds all tasks that were run."""
    # Only tasks graded on both sides: a task that one policy could not be graded on must not shift the mean.
    common = sorted(before.keys() & after.keys())
    gains = [after[task] - before[task] for task in common]
    better = sum(gain > _EQUAL for gain in gains)
    worse = sum(gain < -_EQUAL for gain in gains)
    return Comparison(
        difference=paired_difference([before[task] for task in common], [after[task] for task in common]),
        better=better,
        worse=worse,
        equal=len(common) - better - worse,
        left_out=len(asked) - len(common),
    )


def _causes(states: Sequence[RolloutState]) -> dict[str, int]:
    return dict(sorted(Counter(str(state.cause) for state in states if state.cause is not None).items()))


def _means(by_task: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {task: sum(rewards) / len(rewards) for task, rewards in by_task.items()}
