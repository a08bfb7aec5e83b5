"""TRL's GRPOTrainer on the batches of a run, with the correction that it leaves out.

TRL's `rollout_func` may return logprobs, but without vLLM the trainer does not use them: the ratio of the
first step is always 1, and tokens of an older policy are trained as if the current one had sampled them. The
trainer here uses them, like HarnessGym's own: either ratios are clipped against the policy that sampled
(proximal "behaviour"), or tokens are weighted by a correction of the ratio between the policy at the start of
the step and the one that sampled (proximal "current").

The `rollout_func` here returns the next batch of the run and ignores TRL's prompts, because the run chooses
its tasks. Advantages, losses, KL and all else are TRL's, by its arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from harnessgym.errors import TrainerError
from trainers.corrections.importance_sampling import truncated
from trainers.trl_bridge.samples import (
    Sample,
    SampledBatch,
    empty_sample,
    fields_of,
    recorded_reward,
    samples_of,
)
from trainers.trl_bridge.training_run import TakenBatch, TrainingRun
from trainers.trl_bridge.weight_transfer import named_weights

_LEFT = ("prompt_ids", "prompt_mask")
_RIGHT = ("completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps")


def appended(output: dict[str, Any], places: Sequence[int], added: Sequence[Sample]) -> dict[str, Any]:
    """TRL's batch with `added` appended. Added sample i gets the advantage of the sample at index
    `places[i]`.

    Raises `TrainerError` if the batch has fields that the added samples lack: logprobs of a reference policy,
    images.
    """
    unknown = output.keys() - {*_LEFT, *_RIGHT, "advantages", "num_items_in_batch"}
    if unknown:
        raise TrainerError(
            f"Rollout {added[0].rollout_id} has several rows, and TRL's batch has "
            f"{', '.join(sorted(unknown))} of the first only: leave out the KL penalty (beta = 0) and images."
        )
    columns: dict[str, Sequence[Sequence[float]]] = {
        "prompt_ids": [sample.prompt_ids for sample in added],
        "prompt_mask": [[1] * len(sample.prompt_ids) for sample in added],
        "completion_ids": [sample.completion_ids for sample in added],
        "completion_mask": [[1] * len(sample.completion_ids) for sample in added],
        "tool_mask": [sample.env_mask for sample in added],
        "sampling_per_token_logps": [sample.logprobs for sample in added],
    }
    joined = {name: _joined(output[name], column, left=name in _LEFT) for name, column in columns.items()}
    trained = (joined["completion_mask"] * joined["tool_mask"]).sum()
    advantages = torch.cat([output["advantages"], output["advantages"][list(places)]])
    return output | joined | {"advantages": advantages, "num_items_in_batch": trained}


def _joined(padded: Tensor, rows: Sequence[Sequence[float]], *, left: bool) -> Tensor:
    """[B + len(rows), T], padded with zeros; masks say which tokens count."""
    length = max(padded.size(1), *map(len, rows))

    def fitted(tensor: Tensor) -> Tensor:
        missing = length - tensor.size(-1)
        return F.pad(tensor, (missing, 0) if left else (0, missing))

    added = [fitted(torch.tensor(row, dtype=padded.dtype, device=padded.device)) for row in rows]
    return torch.cat([fitted(padded), torch.stack(added)])


class RolloutFunc:
    """Each call waits for the run's next batch and returns it."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.taken: TakenBatch | None = None
        """The last batch."""
        self.batch = SampledBatch((), ())
        """The last batch, as samples."""

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """The batch as {prompt_ids, completion_ids, logprobs, env_mask, reward}: lists with one entry per
        rollout, group by group.

        Raises `TrainerError` for a trainer that would not use the logprobs, or asks for another batch than
        the run's.
        """
        if getattr(trainer, "rollouts", None) is not self:
            raise TrainerError(
                f"{type(trainer).__name__} stores the logprobs of a rollout_func and does not use them "
                "without vLLM: older tokens would be trained as if they were new. "
                "`trainers.trl_bridge.grpo.RunGRPOTrainer` corrects that: use it."
            )
        if not trainer.model.training or len(prompts) != self.run.batch_rollouts:
            raise TrainerError(
                f"TRL asks for {len(prompts)} rollouts to "
                f"{'train' if trainer.model.training else 'evaluate'} on, but the run only gives batches of "
                f"{self.run.batch_rollouts} to train on. The run evaluates by itself: leave `eval_dataset` "
                "out."
            )
        self.taken = self.run.take()
        self.batch = samples_of(self.taken.groups, self.run.options.group_size)
        return fields_of(self.batch.first)


def rollout_func(run: TrainingRun) -> RolloutFunc:
    """The `rollout_func` of a run, for `trainers.trl_bridge.grpo.RunGRPOTrainer`."""
    return RolloutFunc(run)


Correction = Callable[[Tensor], Tensor]
"""log(pi_old / mu) per trained token, float [N], to a weight per token, float [N]; see
`trainers.corrections`."""
_BY_TOKENS = ("dapo", "cispo", "vespo")
"""Losses whose denominator is the batch's trained tokens; the others' counts samples."""
_LARGER = ("dars", "gdro", "xrpo")
"""Selectors that give some tasks more rollouts than `trainer.group_size`."""


class RunGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """Trains a run's policy; `args` must agree with the run (see `grpo_arguments`), and further arguments are
    GRPOTrainer's.

    Raises `TrainerError` for unsupported arguments: another batch size than the run's, several processes,
    vLLM, adapters.
    """

    def __init__(
        self,
        run: TrainingRun,
        args: GRPOConfig,
        *,
        proximal: Literal["behaviour", "current"] = "behaviour",
        correction: Correction = truncated,
        **further: Any,
    ) -> None:
        _check_arguments(run, args, proximal)
        if further.get("peft_config") is not None:
            raise TrainerError("A policy version has full weights, not an adapter: leave peft_config out.")
        self.run = run
        self.proximal = proximal
        self.correction = correction
        self.rollouts = rollout_func(run)
        self.advantages: dict[str, float] = {}
        """TRL's advantages of the last batch, by rollout id."""
        further.setdefault("reward_funcs", recorded_reward)
        prompts = Dataset.from_dict({"prompt": ["the next group of the run"] * run.options.groups_per_step})
        super().__init__(
            model=str(run.model_folder()),
            args=args,
            train_dataset=prompts,
            rollout_func=self.rollouts,
            **further,
        )
        if self.accelerator.num_processes > 1:
            raise TrainerError(
                "The bridge to GRPOTrainer is for one process: start it without `accelerate launch`."
            )
        self.add_callback(_Publishing(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train the run's remaining steps. Does nothing if there are none, which `max_steps` cannot
        express.
        """
        return super().train(*args, **kwargs) if self.run.steps_left else None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        batch = self.rollouts.batch
        advantages = output["advantages"].tolist()
        self.advantages = {
            sample.rollout_id: value for sample, value in zip(batch.first, advantages, strict=True)
        }
        output = self._with_further(output, batch.further)
        return self._corrected(output)

    def _with_further(
        self, output: dict[str, Any], further: tuple[tuple[int, Sample], ...]
    ) -> dict[str, Any]:
        """TRL's batch plus the samples of further rows, which get the advantage of their rollout."""
        if not further:
            return output
        if self.loss_type not in _BY_TOKENS:
            raise TrainerError(
                f"Rollout {further[0][1].rollout_id} has several rows, and loss_type {self.loss_type!r} "
                "takes a mean over samples, so it would count more than other rollouts. Choose one of "
                f"{', '.join(_BY_TOKENS)}."
            )
        missing = -(len(output["advantages"]) + len(further)) % self.args.steps_per_generation
        places = [place for place, _ in further] + [0] * missing
        added = [sample for _, sample in further] + [empty_sample("", None)] * missing
        return appended(output, places, added)

    def _corrected(self, output: dict[str, Any]) -> dict[str, Any]:
        """The samples with the recorded logprobs where the loss uses them."""
        sampled_BT = output["sampling_per_token_logps"]
        if self.proximal == "behaviour":
            return output | {"old_per_token_logps": sampled_BT}
        mask_BT = (output["completion_mask"] * output["tool_mask"]) != 0
        old_BT = self._logprobs(output)
        weights_BT = torch.zeros_like(old_BT)
        weights_BT[mask_BT] = self.correction((old_BT - sampled_BT)[mask_BT])
        return output | {
            "old_per_token_logps": old_BT,
            "advantages": output["advantages"][:, None] * weights_BT,
        }

    def _logprobs(self, output: dict[str, Any]) -> Tensor:
        """Logprobs of the completions under the policy at the start of the step, float [B, T]."""
        ids_BT = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask_BT = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        length = output["completion_ids"].size(1)
        size = self.args.per_device_train_batch_size
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
        ):
            logprobs_BT: Tensor = self._get_per_token_logps_and_entropies(
                self.model, ids_BT, mask_BT, length, size
            )[0]
        return logprobs_BT


def grpo_arguments(run: TrainingRun) -> dict[str, Any]:
    """The arguments in which a `GRPOConfig` must agree with the run, for one micro-batch per step, and
    without TRL's own logs and checkpoints.
    """
    return run.arguments | {
        "num_generations": run.options.group_size,
        "per_device_train_batch_size": run.batch_rollouts,
    }


def _check_arguments(run: TrainingRun, args: GRPOConfig, proximal: str) -> None:
    """Require one optimizer step per batch, at the sampling temperature. Raises `TrainerError` naming the
    argument that does not fit.
    """
    if run.config.generate.selector in _LARGER:
        raise TrainerError(
            f"The selector {run.config.generate.selector} may submit groups larger than trainer.group_size, "
            "but GRPOTrainer needs groups of one size: choose another generate.selector, or algorithm = "
            "'grpo'."
        )
    wanted = {
        "num_generations": run.options.group_size,
        "generation_batch_size": run.batch_rollouts,
        "steps_per_generation": args.gradient_accumulation_steps,
        "num_iterations": 1,
        "temperature": run.config.sampling.temperature,
        "use_vllm": False,
    }
    for name, value in wanted.items():
        if getattr(args, name) != value:
            raise TrainerError(
                f"GRPOConfig has {name} = {getattr(args, name)}, but this run needs {value}: one batch of "
                "the run is one step and one policy version. `grpo_arguments(run)` has the right values."
            )
    if args.loss_type == "vespo" and proximal == "current":
        raise TrainerError("The loss vespo already weights by ratios: set proximal = 'behaviour'.")


class _Publishing(TrainerCallback):  # type: ignore[misc]
    """Publishes the weights before the first step and after each step."""

    def __init__(self, trainer: RunGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.trainer.run.begin(named_weights(self.trainer.model))

    def on_step_end(self, *_: object, **__: object) -> None:
        batch = self.trainer.rollouts.taken
        assert batch is not None
        self.trainer.run.commit(
            named_weights(self.trainer.model), batch.trained_with(self.trainer.advantages)
        )
