"""GRPO on the shipped policy, in one process: `python -m benchmarks.recipe.run`.

What the asynchronous line does with proxies, sandboxes and engines happens here in plain calls, so that the
recipe can be measured by itself. Rollouts are as old as they are there: of each batch one half was sampled
one version ago, the other two. Held-out tasks (other items, other wordings) are played before and after. The
control shuffles each batch's rewards over its rollouts; what it gains is not learnt from the reward.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from benchmarks.recipe.chat import Chat
from benchmarks.recipe.episodes import Episode, play
from environments.lookup import LookupTasks
from harnessgym.task import Task
from harnessgym.traces.trajectories import Row
from trainers.advantages.group_relative import grpo
from trainers.optimizer import make_optimizer
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings

FOLDER = Path("environments/lookup/policy")
OUT = Path("benchmarks/out/recipe.json")
COMMITTED = Path("benchmarks/recipe/results.json")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training run."""

    seed: int = 0
    steps: int = 24
    groups: int = 16
    """Groups per step: different tasks."""
    group_size: int = 4
    """Rollouts of each task."""
    lr: float = 4e-4
    shuffled: bool = False
    """The control."""
    eval_every: int = 6

    @property
    def rollouts(self) -> int:
        """Rollouts trained on in all."""
        return self.steps * self.groups * self.group_size


@dataclass(frozen=True, slots=True)
class Score:
    """Success on held-out tasks after so many training rollouts."""

    rollouts: int
    greedy: float
    sampled: float
    """At temperature 1."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a recipe did."""

    recipe: Recipe
    scores: list[Score]
    train_success: list[float]
    """Mean reward of each batch."""
    seconds: float
    """Rollouts and updates, evaluation apart."""


def run_recipe(recipe: Recipe, folder: Path = FOLDER) -> Result:
    """Train from the policy in `folder`; leaves it unchanged. Deterministic in the recipe on one machine."""
    policy, chat = load_policy(folder), Chat.from_folder(folder)
    settings = UpdateSettings(lr=recipe.lr)
    optimizer, random = make_optimizer(policy, settings), Random(f"recipe {recipe.seed}")
    actor = Actor(load_policy(folder), chat, torch.Generator().manual_seed(recipe.seed))
    versions = [policy.published()]
    tasks, scores, successes, seconds = task_stream(random), [evaluate(policy, chat, 0)], [], 0.0
    for step in range(recipe.steps):
        started = time.perf_counter()
        rows, rewards = actor.batch([next(tasks) for _ in range(recipe.groups)], recipe.group_size, versions)
        successes.append(sum(rewards) / len(rewards))
        if recipe.shuffled:
            random.shuffle(rewards)
        groups = np.array(rewards).reshape(recipe.groups, recipe.group_size)
        advantages = np.concatenate([grpo(group) for group in groups])
        kept = [index for index, advantage in enumerate(advantages) if advantage]
        if kept:
            batch = [rows[index] for index in kept]
            policy_update(policy, optimizer, batch, [float(advantages[index]) for index in kept], settings)
        versions.append(policy.published())
        seconds += time.perf_counter() - started
        if (step + 1) % recipe.eval_every == 0 or step + 1 == recipe.steps:
            scores.append(evaluate(policy, chat, (step + 1) * recipe.groups * recipe.group_size))
    return Result(recipe, scores, successes, seconds)


@dataclass(frozen=True, slots=True)
class Actor:
    """Plays tasks with weights that are one or two versions old."""

    policy: NativePolicy
    chat: Chat
    generator: torch.Generator

    def batch(
        self, tasks: Sequence[Task], group_size: int, versions: Sequence[dict[str, Tensor]]
    ) -> tuple[list[Row], list[float]]:
        """Rows and rewards of `group_size` plays of each task, group by group. `versions` ends with the
        newest weights.
        """
        rows, rewards, half = [], [], len(tasks) // 2
        for age, part in ((1, tasks[:half]), (2, tasks[half:])):
            version = max(len(versions) - 1 - age, 0)
            self.policy.load(versions[version])
            played = [task for task in part for _ in range(group_size)]
            for index, episode in enumerate(play(self.policy, self.chat, played, 1.0, self.generator)):
                rows.append(row_of(episode, f"{len(versions)}/{age}/{index}", version))
                rewards.append(episode.reward)
        return rows, rewards


def evaluate(policy: NativePolicy, chat: Chat, rollouts: int, most: int | None = None) -> Score:
    """Play every test task, or the first `most`, once greedily and once at temperature 1."""
    tasks = LookupTasks().tasks("test")[:most]
    generator = torch.Generator().manual_seed(1_000 + rollouts)
    greedy, sampled = (
        float(np.mean([episode.reward for episode in play(policy, chat, tasks, temperature, generator)]))
        for temperature in (0.0, 1.0)
    )
    return Score(rollouts, greedy, sampled)


def row_of(episode: Episode, rollout_id: str, version: int) -> Row:
    """The training row of an episode."""
    mask = np.array(episode.mask, dtype=np.int32)
    return Row(
        rollout_id=rollout_id,
        group_id=episode.task.id,
        ids=np.array(episode.ids, dtype=np.int32),
        mask=mask,
        logprobs=np.array(episode.logprobs, dtype=np.float32),
        versions=np.where(mask == 1, version, -1).astype(np.int32),
    )


def task_stream(random: Random) -> Iterator[Task]:
    """Training tasks, reshuffled each time all have been met."""
    tasks = list(LookupTasks().tasks("train"))
    while True:
        random.shuffle(tasks)
        yield from tasks


def _print_table(results: list[Result]) -> None:
    print("| run | rollouts | greedy before | after | temp 1 before | after | curve at temp 1 (greedy) | s |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        first, last = result.scores[0], result.scores[-1]
        name = f"seed {result.recipe.seed}" + (", shuffled rewards" if result.recipe.shuffled else "")
        curve = " ".join(f"{score.sampled:.2f} ({score.greedy:.2f})" for score in result.scores[1:])
        numbers = f"{first.greedy:.2f} | {last.greedy:.2f} | {first.sampled:.2f} | {last.sampled:.2f}"
        print(
            f"| {name} | {result.recipe.rollouts} | {numbers} | {curve} | {result.seconds:.0f} |", flush=True
        )


def main() -> None:
    """Run the recipe for each seed and the control; print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--groups", type=int, default=Recipe().groups)
    parser.add_argument("--group-size", type=int, default=Recipe().group_size)
    parser.add_argument("--lr", type=float, default=Recipe().lr)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--commit", action="store_true", help=f"also write {COMMITTED}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = Recipe(steps=options.steps, groups=options.groups, group_size=options.group_size, lr=options.lr)
    recipes = [replace(base, seed=seed) for seed in options.seeds]
    recipes += [] if options.no_control else [replace(base, seed=options.seeds[0], shuffled=True)]
    results = [run_recipe(recipe, options.folder) for recipe in recipes]
    _print_table(results)
    machine = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "threads": 1,
    }
    report = json.dumps({"machine": machine, "runs": [asdict(result) for result in results]}, indent=1) + "\n"
    for path in (options.out, *([COMMITTED] if options.commit else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report)


if __name__ == "__main__":
    main()
