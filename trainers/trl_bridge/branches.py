"""Further rows of rollouts in a batch that TRL has padded: prompts to the left, completions to the right."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harnessgym.errors import TrainerError
from trainers.trl_bridge.samples import Sample

_LEFT = ("prompt_ids", "prompt_mask")
_RIGHT = ("completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps")


def appended(output: dict[str, Any], places: Sequence[int], added: Sequence[Sample]) -> dict[str, Any]:
    """TRL's batch with samples added, each with the advantage of the sample that stands at its place.

    Raises `TrainerError` if the batch has what is not known of the added ones: logprobs of a reference
    policy, images.
    """
    unknown = output.keys() - {*_LEFT, *_RIGHT, "advantages", "num_items_in_batch"}
    if unknown:
        raise TrainerError(
            f"Rollout {added[0].rollout_id} has several rows, and TRL's batch has "
            f"{', '.join(sorted(unknown))} of the first "
            "only: leave out the KL penalty (beta = 0) and images."
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
    """[B + len(rows), T] with zeros where a row is shorter: masks say which tokens count."""
    length = max(padded.size(1), *map(len, rows))

    def fitted(tensor: Tensor) -> Tensor:
        missing = length - tensor.size(-1)
        return F.pad(tensor, (missing, 0) if left else (0, missing))

    added = [fitted(torch.tensor(row, dtype=padded.dtype, device=padded.device)) for row in rows]
    return torch.cat([fitted(padded), torch.stack(added)])
