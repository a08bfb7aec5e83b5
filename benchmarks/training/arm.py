"""One arm on one case, in this process: `python -m benchmarks.training.arm CASE ARM SEED FOLDER STEPS`.

Prints a line of JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training.cases import ROLLOUTS, rows
from harnessgym.run_config.run import Implementation
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row

_LR = 1e-7
"""So small that steps hardly differ; its size costs nothing."""
_MIB = 2**20


def main() -> None:
    """Measure, and print."""
    case, arm, seed, folder, steps = sys.argv[1:]
    found, rewards = rows(case, int(seed), Path(folder))
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)  # as TRL has them
    if arm.startswith("trl"):
        figures = _trl(found, rewards, Path(folder), int(steps), checkpointing=arm.endswith("checkpointing"))
    else:
        implementation: Implementation = "transformers" if arm.endswith("transformers") else "native"
        figures = _ours(found, advantages, Path(folder), int(steps), implementation)
    print(json.dumps(figures))


def _ours(
    found: Sequence[Row], advantages: FloatArray, folder: Path, steps: int, implementation: Implementation
) -> dict[str, Any]:
    from trainers.optimizer import make_optimizer
    from trainers.policies.loading import load_policy
    from trainers.update import policy_update
    from trainers.update_settings import UpdateSettings

    settings = UpdateSettings(lr=_LR, proximal="current", micro_batch_tokens=16_384)
    policy = load_policy(folder, implementation)
    optimizer = make_optimizer(policy, settings)
    norms: list[float] = []

    def step() -> None:
        norms.append(
            policy_update(
                policy, optimizer, found, [float(value) for value in advantages], settings
            ).grad_norm
        )
        optimizer.zero_grad(set_to_none=True)

    times, peaks = _repeated(step, steps)
    return {"step_s": statistics.median(times), "peak_mib": max(peaks), "grad_norm": norms[0]}


def _trl(
    found: Sequence[Row], rewards: FloatArray, folder: Path, steps: int, *, checkpointing: bool
) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    watch = _Watch()
    norms: list[float] = []

    class Watching(TrainerCallback):  # type: ignore[misc]
        """Measures from the beginning of a step to its end, the optimizer's part included."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.end()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "grad_norm" in logs:
                norms.append(float(logs["grad_norm"]))

    def rollouts(prompts: list[str], _: Any) -> dict[str, Any]:
        assert len(prompts) == ROLLOUTS
        firsts = [int(np.argmax(row.mask)) for row in found]
        parts = list(zip(found, firsts, strict=True))
        return {
            "prompt_ids": [row.ids[:first].tolist() for row, first in parts],
            "completion_ids": [row.ids[first:].tolist() for row, first in parts],
            "logprobs": [row.logprobs[first:].tolist() for row, first in parts],
            "reward": rewards.tolist(),
        }

    def reward(*, reward: list[float], **_: Any) -> list[float]:
        return reward

    with tempfile.TemporaryDirectory() as place:
        args = GRPOConfig(
            output_dir=place, per_device_train_batch_size=ROLLOUTS, num_generations=ROLLOUTS, max_steps=steps + 1,
            learning_rate=_LR, loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, max_grad_norm=1.0,
            adam_beta2=0.95, lr_scheduler_type="constant", gradient_checkpointing=checkpointing, bf16=False, use_cpu=True,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, max_completion_length=1024, seed=0,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": ["rows that were recorded"] * ROLLOUTS})
        trainer = GRPOTrainer(
            model=str(folder),
            args=args,
            train_dataset=data,
            reward_funcs=reward,
            rollout_func=rollouts,
            callbacks=[Watching()],
        )
        trainer.train()
    return {
        "step_s": statistics.median(watch.times[1:]),
        "peak_mib": max(watch.peaks[1:]),
        "grad_norm": norms[0],
    }


class _Watch:
    """Seconds of steps, and how far memory rose in each above what it was when the step began."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.peaks: list[float] = []
        self._began = 0.0
        self._base = 0

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at what is there
        self._base, self._began = _memory("VmRSS"), time.perf_counter()

    def end(self) -> None:
        self.times.append(time.perf_counter() - self._began)
        self.peaks.append((_memory("VmHWM") - self._base) / _MIB)


def _repeated(step: Callable[[], None], count: int) -> tuple[list[float], list[float]]:
    """A step that is not counted, and `count` that are."""
    watch = _Watch()
    for _ in range(count + 1):
        watch.begin()
        step()
        watch.end()
    return watch.times[1:], watch.peaks[1:]


def _memory(field: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")
    )
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
