"""AReaL arrays: the tensor dictionary of a trajectory, one JSON object per line and branch.

Names and shapes are those of `to_tensor_dict` in AReaL's `areal/experimental/openai/types.py`, with a leading
batch dimension of one: `input_ids`, `loss_mask`, `versions` int64 [1, T] (version -1 where nothing was
sampled), `logprobs` float32 [1, T], `attention_mask` bool [1, T], `rewards` float32 [1]. `arrays` yields them
as numpy arrays; a line holds the same values as lists.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harnessgym.errors import TraceError
from harnessgym.traces.atomic_files import write_lines
from harnessgym.traces.export import TracedRollout


class Areal:
    """One line per training row."""

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the lines."""
        return write_lines(rollouts, out, _lines)


def arrays(rollout: TracedRollout) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the rows of a rollout.

    Raises `TraceError` if the rollout has no reward: AReaL's rows cannot express that.
    """
    if rollout.reward is None:
        raise TraceError(
            f"Rollout {rollout.id} has no reward, and rows for AReaL need one. Leave it out: `--min-reward`."
        )
    reward = np.asarray([rollout.reward], np.float32)
    for row in rollout.trajectory.rows:
        yield {
            "input_ids": row.ids.astype(np.int64)[None],
            "loss_mask": row.mask.astype(np.int64)[None],
            "logprobs": row.logprobs.astype(np.float32)[None],
            "versions": row.versions.astype(np.int64)[None],
            "attention_mask": np.ones((1, len(row.ids)), np.bool_),
            "rewards": reward,
        }


def _lines(rollout: TracedRollout) -> Iterator[dict[str, Any]]:
    for row_arrays in arrays(rollout):
        yield {name: array.tolist() for name, array in row_arrays.items()}
