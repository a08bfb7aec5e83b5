"""TRL's GRPOTrainer trains a run, whose agents, proxy and engines go on meanwhile.

harnessgym train examples/quickstart.toml --folder runs/trl --trainer.algorithm examples.trl_grpo:train
"""

from typing import Any


def train(settings: Any) -> None:
    """What the run's trainer process does."""
    from trl import GRPOConfig

    from trainers.trl_bridge.grpo import RunGRPOTrainer, grpo_arguments
    from trainers.trl_bridge.training_run import TrainingRun

    with TrainingRun(settings) as run:
        args = GRPOConfig(**grpo_arguments(run), learning_rate=4e-4, adam_beta2=0.95, loss_type="dapo")
        RunGRPOTrainer(run, args, proximal="current").train()
