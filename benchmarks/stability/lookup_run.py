"""One run of a method on the quickstart's task: its questions, rewards and policy, played in this process."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.recipe.chat import Chat
from benchmarks.recipe.episodes import play as play_episodes
from benchmarks.recipe.run import FOLDER, evaluate, row_of, task_stream
from benchmarks.stability.methods import Method
from benchmarks.stability.outcome import outcome
from benchmarks.stability.student import Group, Student
from harnessgym.errors import TrainerError
from trainers.policies.loading import load_policy
from trainers.update import UpdateMetrics


@dataclass(frozen=True, slots=True)
class Lookup:
    """How the quickstart's policy is trained; the recipe's batch and learning rate."""

    steps: int = 64
    groups: int = 16
    group_size: int = 4
    lr: float = 4e-4
    eval_every: int = 16
    """Steps between looks at held-out tasks."""
    eval_tasks: int = 300


def play(lookup: Lookup, method: Method, lag: int, seed: int, folder: Path = FOLDER) -> dict[str, Any]:
    """Train the shipped policy; `outcome` of its success on held-out tasks at temperature 1, and `greedy`,
    the same at 0.
    """
    chat, tasks = Chat.from_folder(folder), task_stream(Random(f"stability {seed}"))
    student, generator = (
        Student(load_policy(folder), method, lookup.lr, lag),
        torch.Generator().manual_seed(seed),
    )
    first = evaluate(student.policy, chat, 0, lookup.eval_tasks)
    curve, greedy, seen, failed = [first.sampled], [first.greedy], list[UpdateMetrics](), None
    for step in range(lookup.steps):
        drawn = [next(tasks) for _ in range(lookup.groups)]
        with student.sampling() as policy:
            played = play_episodes(
                policy, chat, [task for task in drawn for _ in range(lookup.group_size)], 1.0, generator
            )
        rows = [
            row_of(episode, f"{step}/{at:04d}", student.sampling_version) for at, episode in enumerate(played)
        ]
        rewards, cuts = [episode.reward for episode in played], range(0, len(rows), lookup.group_size)
        try:
            metrics = student.learn(
                [
                    Group(rows[at : at + lookup.group_size], rewards[at : at + lookup.group_size])
                    for at in cuts
                ]
            )
        except TrainerError as error:
            failed = str(error)
            break
        if metrics is not None:
            seen.append(metrics)
        if (step + 1) % lookup.eval_every == 0 or step + 1 == lookup.steps:
            score = evaluate(student.policy, chat, step + 1, lookup.eval_tasks)
            curve.append(score.sampled)
            greedy.append(score.greedy)
    return outcome(curve, seen, lookup.steps, failed) | {"greedy": greedy}
