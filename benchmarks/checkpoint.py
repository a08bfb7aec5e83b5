"""What a checkpoint costs the training: seconds that a step is held up, written at once or by a thread behind
the next step.

    python -m benchmarks.checkpoint [--sizes 10,60,135] [--steps 4] [--wait 0]

The trainer's own parts on a random policy: one update on random rows, a checkpoint synced to disk, a version
published in full; no store and no rollouts. `--wait` is how long the trainer would wait for the next groups,
which is time to write in. Blocking and lazy steps of one size follow each other in the same process; they
write to the folder for temporary files. Prints a table and writes `benchmarks/out/checkpoint.json`.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from harnessgym.run_folder import write_json
from harnessgym.traces.trajectories import Row
from trainers import checkpoint
from trainers.checkpoint import Checkpoint, CheckpointWriter, RandomState
from trainers.optimizer import make_optimizer
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings
from trainers.weights.publish import publish_full

_SHAPES = {10: (4_096, 320, 6), 60: (16_384, 640, 10), 135: (49_152, 576, 30)}
"""Millions of parameters, about: vocabulary, width, layers. The largest has the shape of SmolLM2-135M."""


@dataclass(frozen=True)
class Figures:
    """Medians over steps, milliseconds."""

    parameters: int
    mode: str
    step_ms: float
    """Gradient and optimizer."""
    held_ms: float
    """Until the next batch may be gathered."""
    period_ms: float
    """From step to step."""
    write_ms: float
    """Checkpoint and publication, wherever they run."""


def main() -> None:
    """Measure every size both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", default="10,60", help=f"of {', '.join(map(str, _SHAPES))} million parameters"
    )
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds between steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for size in map(int, options.sizes.split(",")):
        for lazy in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(Path(folder), size, options.steps, options.wait, lazy))
    _report(found, options.steps, options.wait)


def measure(folder: Path, size: int, steps: int, wait_s: float, lazy: bool) -> Figures:
    """Train a few steps; the first is not counted, for it makes the optimizer's state."""
    policy, rows = _policy(size), _rows()
    settings = UpdateSettings(lr=1e-5)
    optimizer = make_optimizer(policy, settings)
    written: list[float] = []

    def commit(state: Checkpoint) -> None:
        began = time.perf_counter()
        checkpoint.save(folder / "checkpoints", state)
        publish_full(
            folder / "versions", state.version, None, state.weights, step=state.step, run="benchmark"
        )
        written.append(time.perf_counter() - began)

    writer = CheckpointWriter(commit, lazy=lazy)
    stepped, held, periods = [], [], []
    for step in range(steps + 1):
        began = time.perf_counter()
        time.sleep(wait_s)
        computing = time.perf_counter()
        policy_update(policy, optimizer, rows, [1.0, -1.0] * (len(rows) // 2), settings)
        done = time.perf_counter()
        staged = writer.stage(optimizer.state_dict())
        writer.submit(Checkpoint(step, step, policy.published(), staged, (RandomState.here(),), None, {}))
        stepped.append(done - computing)
        held.append(time.perf_counter() - done)
        periods.append(time.perf_counter() - began)
    writer.settle()
    writer.close()
    middle = [statistics.median(times[1:]) * 1e3 for times in (stepped, held, periods, written)]
    return Figures(sum(p.numel() for p in policy.parameters()), "lazy" if lazy else "blocking", *middle)


def _policy(size: int) -> NativePolicy:
    vocabulary, width, layers = _SHAPES[size]
    torch.manual_seed(0)
    return NativePolicy(
        NativeConfig(vocabulary, width, width * 8 // 3 // 64 * 64, layers, width // 64, width // 64, 64)
    )


def _rows(count: int = 4, length: int = 48) -> list[Row]:
    draw = np.random.default_rng(0)
    rows = []
    for index in range(count):
        mask = np.ones(length, np.int32)
        mask[: length // 2] = 0
        logprobs = np.where(mask == 1, -7.0, 0.0).astype(np.float32)
        ids, versions = (
            draw.integers(0, 4_096, length).astype(np.int32),
            np.where(mask == 1, 0, -1).astype(np.int32),
        )
        rows.append(Row(f"rollout {index}", "group", ids, mask, logprobs, versions))
    return rows


def _report(found: list[Figures], steps: int, wait_s: float) -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    title = f"Checkpoint and publication, medians of {steps} steps, {wait_s} s between them, {machine}"
    table = Table("parameters", "mode", "step, ms", "held, ms", "period, ms", "written in, ms", title=title)
    for each in found:
        times = (each.step_ms, each.held_ms, each.period_ms, each.write_ms)
        table.add_row(f"{each.parameters / 1e6:.0f} M", each.mode, *(f"{value:.0f}" for value in times))
    Console().print(table)
    Path("benchmarks/out").mkdir(exist_ok=True)
    write_json(
        Path("benchmarks/out/checkpoint.json"),
        {"machine": machine, "steps": steps, "wait_s": wait_s, "figures": [asdict(each) for each in found]},
    )


if __name__ == "__main__":
    main()
