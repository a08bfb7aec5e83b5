"""TRL's `rollout_func`: the next batch of a run instead of completions that the trainer asks for.

Which prompts are trained is the run's affair, so those that TRL gives are not looked at.
"""

from typing import Any

from harnessgym.errors import TrainerError
from trainers.trl_bridge.samples import SampledBatch, fields_of, samples_of
from trainers.trl_bridge.training_run import TakenBatch, TrainingRun


class RolloutFunc:
    """Takes a batch each time that it is called, and waits for it."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.taken: TakenBatch | None = None
        """The last batch."""
        self.batch = SampledBatch((), ())
        """The same, as samples."""

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """{prompt_ids, completion_ids, logprobs, env_mask, reward}, a list entry a rollout, groups one after
        another.

        Raises `TrainerError` for a trainer that would not use the logprobs, or asks for another batch than
        the run's.
        """
        if getattr(trainer, "rollouts", None) is not self:
            raise TrainerError(
                f"{type(trainer).__name__} stores the logprobs of a rollout_func and does not use them "
                "without vLLM: older "
                "tokens would be trained as if they were new. `trainers.trl_bridge.grpo.RunGRPOTrainer` "
                "corrects that: use it."
            )
        if not trainer.model.training or len(prompts) != self.run.batch_rollouts:
            raise TrainerError(
                f"TRL asks for {len(prompts)} rollouts to "
                f"{'train' if trainer.model.training else 'evaluate'} on; a run gives "
                f"batches of {self.run.batch_rollouts} to train on. The run evaluates by itself: leave "
                "`eval_dataset` out."
            )
        self.taken = self.run.take()
        self.batch = samples_of(self.taken.groups, self.run.options.group_size)
        return fields_of(self.batch.first)


def rollout_func(run: TrainingRun) -> RolloutFunc:
    """The `rollout_func` of a run, for `trainers.trl_bridge.grpo.RunGRPOTrainer`."""
    return RolloutFunc(run)
