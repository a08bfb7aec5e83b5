"""One run of a method on a toy."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.stability.methods import Method
from benchmarks.stability.outcome import outcome
from benchmarks.stability.student import Group, Student
from benchmarks.stability.toys import Ids, Toy, make_world, rollouts, table
from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.update import UpdateMetrics


def play(toy: Toy, method: Method, lag: int, seed: int) -> dict[str, Any]:
    """Train a fresh table; `outcome` of its expected rewards. Deterministic in its arguments on one
    machine.
    """
    world, student = make_world(toy, seed), Student(toy.policy(seed), method, toy.lr, lag)
    random = np.random.default_rng([seed, 2])
    curve, seen, failed = [world.expected(table(student.policy))], list[UpdateMetrics](), None
    for step in range(1, toy.steps + 1):
        prompts_B = np.repeat(random.integers(toy.tokens, size=toy.groups, dtype=np.int32), toy.group_size)
        with student.sampling() as policy:
            ids_BT, logprobs_BT = rollouts(policy, prompts_B, toy.length, random)
        rewards = world.rewards(prompts_B, ids_BT, random).tolist()
        rows = list(_rows(prompts_B, ids_BT, logprobs_BT, student.sampling_version))
        cuts = [slice(at, at + toy.group_size) for at in range(0, len(rows), toy.group_size)]
        try:
            metrics = student.learn([Group(rows[cut], rewards[cut]) for cut in cuts])
        except TrainerError as error:
            failed = str(error)
            break
        if metrics is not None:
            seen.append(metrics)
        if step % toy.look_every == 0 or step == toy.steps:
            value = world.expected(table(student.policy))
            if not math.isfinite(value):
                failed = f"The policy's probabilities are not finite after step {step}."
                break
            curve.append(value)
    return outcome(curve, seen, toy.steps, failed)


def _rows(prompts_B: Ids, ids_BT: Ids, logprobs_BT: FloatArray, version: int) -> Iterator[Row]:
    mask = np.array([0] + [1] * ids_BT.shape[1], dtype=np.int32)
    versions = np.where(mask == 1, version, -1).astype(np.int32)
    for index, (prompt, ids, logprobs) in enumerate(zip(prompts_B, ids_BT, logprobs_BT, strict=True)):
        own, said = np.concatenate(([prompt], ids)), np.concatenate(([0.0], logprobs))
        yield Row(
            f"{version}/{index:04d}", "toy", own.astype(np.int32), mask, said.astype(np.float32), versions
        )
