"""Training on recorded rollouts by TRL's own trainers: supervised, by rejection sampling, or on preference
pairs (DPO).

The losses see the recorded token ids: nothing is tokenised again or cut off, and text of tools and users is
masked in all of them. The result is a Hugging Face folder like the one from which training starts.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from harnessgym.config import nearest
from harnessgym.errors import ConfigError, TraceError
from harnessgym.store import TraceStore
from harnessgym.traces.atomic_files import replacing
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.exports.row_facts import first_trained
from harnessgym.traces.trajectories import Row
from trainers.trl_bridge.weight_transfer import named_weights
from trainers.weights.export import write_model

Example = dict[str, Any]
IGNORED = -100
"""Label of a token without a loss."""


@dataclass(frozen=True, slots=True)
class GradedRollout:
    """A finished rollout with its reward."""

    id: str
    group_id: str
    reward: float
    rows: tuple[Row, ...]


def best_of_groups(rollouts: Iterable[GradedRollout]) -> list[GradedRollout]:
    """The best rollout of each group, the first among equals (rejection sampling, as in RAFT, arXiv
    2304.06767).
    """
    return [max(group, key=lambda item: item.reward) for group in _groups(rollouts)]


def supervised(rollouts: Iterable[GradedRollout]) -> list[Example]:
    """{input_ids, labels} of every row. Only tokens that the policy sampled have labels."""
    return [
        {
            "input_ids": row.ids.tolist(),
            "labels": [
                token if trained else IGNORED
                for token, trained in zip(row.ids.tolist(), row.mask, strict=True)
            ],
        }
        for rollout in rollouts
        for row in rollout.rows
    ]


def preferences(rollouts: Iterable[GradedRollout]) -> list[Example]:
    """{prompt_ids, chosen_ids, rejected_ids, chosen_mask, rejected_mask} of the best and the worst rollout of
    each group.

    A row of the best rollout is paired with a row of the worst that has the same tokens before its first
    trained one. Rows without such a counterpart, and groups of equal rewards, give no pair. The masks say
    which tokens of a completion the policy sampled.
    """
    return [
        _pair(chosen, rejected)
        for group in _groups(rollouts)
        for chosen, rejected in _counterparts(
            max(group, key=lambda item: item.reward), min(group, key=lambda item: item.reward)
        )
    ]


def _counterparts(best: GradedRollout, worst: GradedRollout) -> Iterator[tuple[Row, Row]]:
    if best.reward <= worst.reward:
        return
    left = list(worst.rows)
    for row in best.rows:
        counterpart = next((other for other in left if _prompt(other) == _prompt(row)), None)
        if counterpart is not None:
            left = [other for other in left if other is not counterpart]
            yield row, counterpart


def _pair(chosen: Row, rejected: Row) -> Example:
    start = first_trained(chosen)
    return {
        "prompt_ids": _prompt(chosen),
        "chosen_ids": chosen.ids[start:].tolist(),
        "rejected_ids": rejected.ids[start:].tolist(),
        "chosen_mask": chosen.mask[start:].tolist(),
        "rejected_mask": rejected.mask[start:].tolist(),
    }


def _prompt(row: Row) -> list[int]:
    prompt: list[int] = row.ids[: first_trained(row)].tolist()
    return prompt


def _groups(rollouts: Iterable[GradedRollout]) -> list[Sequence[GradedRollout]]:
    """By group, in order of first appearance."""
    groups: dict[str, list[GradedRollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    return list(groups.values())


Method = Literal["sft", "rejection", "dpo"]


@dataclass(frozen=True, slots=True)
class OfflineTraining:
    """The result of offline training."""

    folder: Path
    rollouts: int
    """Rollouts that have tokens and a reward."""
    examples: int
    """Rows, or pairs of rows."""
    tokens: int
    """Tokens with a loss in one epoch."""
    steps: int
    loss: float
    """Mean over the steps."""


def train_offline(
    method: Method,
    store: TraceStore,
    rollout_ids: Iterable[str],
    policy: Path,
    out: Path,
    settings: Mapping[str, Any],
    min_reward: float | None = None,
) -> OfflineTraining:
    """Train a copy of the policy at `policy` and write it to `out`, a new or empty folder.

    sft learns all rollouts and rejection the best of each group, if they have at least `min_reward`; dpo
    prefers the best of each group to its worst. `settings` are those of TRL's `SFTConfig` or `DPOConfig`.
    Raises `ConfigError` for a setting that TRL does not have, or if there is nothing to learn from, and
    `TraceError` for rollouts that several policies sampled.
    """
    known = [rollout for rollout in graded(store, rollout_ids) if rollout.rows]
    examples = examples_of(method, known, min_reward)
    if not examples:
        what = (
            "pair of rollouts of a group with different rewards and a common prompt"
            if method == "dpo"
            else "rollout"
        )
        raise ConfigError(
            f"None of {len(known)} rollouts with tokens and a reward is a {what} to train on with {method}."
        )
    with replacing(out) as part, tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(method, policy, examples, {"output_dir": scratch} | dict(settings))
        done = trainer.train()
        write_model(policy, named_weights(trainer.model), part)
    learnt = sum(_learnt(example) for example in examples)
    return OfflineTraining(out, len(known), len(examples), learnt, done.global_step, done.training_loss)


def graded(store: TraceStore, rollout_ids: Iterable[str]) -> Iterable[GradedRollout]:
    """Recorded rollouts that have a reward. Raises `TraceError` for one that several policies sampled."""
    for name in rollout_ids:
        rollout = TracedRollout(store, name, Languages())
        if len({row.policy_id for row in rollout.trajectory.rows}) > 1:
            raise TraceError(
                f"Rollout {name} was sampled by several policies; offline training supports one."
            )
        if rollout.reward is not None:
            yield GradedRollout(name, rollout.facts.group_id, rollout.reward, rollout.trajectory.rows)


def examples_of(
    method: Method, rollouts: Sequence[GradedRollout], min_reward: float | None = None
) -> list[Example]:
    """The examples that a method trains on."""
    if method == "dpo":
        return preferences(rollouts)
    chosen = best_of_groups(rollouts) if method == "rejection" else rollouts
    return supervised(rollout for rollout in chosen if min_reward is None or rollout.reward >= min_reward)


def make_trainer(method: Method, policy: Path, examples: list[Example], settings: Mapping[str, Any]) -> Any:
    """TRL's trainer of a method on examples. Raises `ConfigError` for a setting that its configuration
    does not have.
    """
    config = DPOConfig if method == "dpo" else SFTConfig
    names = [field.name for field in fields(config)]
    unknown = next((name for name in settings if name not in names), None)
    if unknown:
        raise ConfigError(f"{config.__name__} of TRL has no setting {unknown!r}. {nearest(unknown, names)}")
    fixed = {
        "max_length": None,
        "report_to": "none",
        "save_strategy": "no",
        "bf16": False,
        "use_cpu": not torch.cuda.is_available(),
    }
    args = config(**fixed | dict(settings))
    data = Dataset.from_list(examples)
    if method == "dpo":
        return _RecordedDPOTrainer(str(policy), args=args, train_dataset=data)
    return SFTTrainer(str(policy), args=args, train_dataset=data)


class _RecordedDPOTrainer(DPOTrainer):  # type: ignore[misc]
    """DPO on recorded tokens. Tokens of a completion that the policy did not sample are masked."""

    data_collator: Any

    def __init__(self, model: str, *, args: DPOConfig, train_dataset: Dataset) -> None:
        super().__init__(model, args=args, train_dataset=train_dataset)
        self.data_collator = _Collator(self.data_collator)

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns += [
            name for name in ("chosen_mask", "rejected_mask") if name not in self._signature_columns
        ]


@dataclass(frozen=True, slots=True)
class _Collator:
    """Wraps TRL's collator of preference pairs, which treats every token of a completion as the policy's, and
    corrects its mask.
    """

    inner: Any

    def __call__(self, examples: list[Example]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = self.inner(examples)
        masks = [[*[0] * len(example["prompt_ids"]), *example["chosen_mask"]] for example in examples]
        masks += [[*[0] * len(example["prompt_ids"]), *example["rejected_mask"]] for example in examples]
        mask = torch.zeros_like(batch["completion_mask"])
        for row, values in zip(mask, masks, strict=True):
            row[: len(values)] = torch.tensor(values[: len(row)])
        return batch | {"completion_mask": mask}


def _learnt(example: Example) -> int:
    """Tokens of an example that have a gradient."""
    if "labels" in example:
        return sum(label >= 0 for label in example["labels"])
    return sum(example["chosen_mask"]) + sum(example["rejected_mask"])
