"""TRL's asynchronous GRPO trainer trains a run. It needs a Hopper GPU (TRL's attention is a FlashAttention-3
kernel).

harnessgym train examples/quickstart.toml --folder runs/trl --trainer.algorithm examples.trl_async:train
"""

from typing import Any


def train(settings: Any) -> None:
    """What the run's trainer process does."""
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from trainers.trl_bridge.rollout_worker import RolloutWorker, async_arguments
    from trainers.trl_bridge.training_run import TrainingRun
    from trainers.trl_bridge.weight_transfer import WeightTransfer

    with TrainingRun(settings) as run:
        if run.steps_left:
            args = AsyncGRPOConfig(**async_arguments(run), learning_rate=4e-4)
            ends = {
                "rollout_worker": (worker := RolloutWorker(run, args)),
                "weight_transfer": WeightTransfer(worker),
            }
            prompts = Dataset.from_dict({"prompt": [""]})  # the run has its own tasks
            AsyncGRPOTrainer(str(run.model_folder()), args=args, train_dataset=prompts, **ends).train()
