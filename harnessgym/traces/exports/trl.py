"""TRL `RolloutSample`: one JSON object per line and branch.

`samples` yields the fields as TRL's asynchronous GRPO expects them. They are those of
`trl/experimental/async_grpo/async_rollout_worker.py`: `input_ids` and `completion_mask` int64 [T],
`old_log_probs` float32 [T], one `advantage` and one `model_version` per sample. The version is the oldest one
that sampled a trained token, so that TRL's staleness limit holds for all tokens. `prompt` and `completion`
are for people; they are empty if the policy's files are missing.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from harnessgym.traces.atomic_files import write_lines
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.exports.row_facts import reward_metrics, scalar_advantage
from harnessgym.traces.trajectories import Row
from harnessgym.traces.transcript import to_wire

Json = dict[str, Any]


class Trl:
    """One line per training row."""

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the lines."""
        return write_lines(rollouts, out, _lines)


def samples(rollout: TracedRollout) -> Iterator[Json]:
    """Yield the rows of a rollout as the arguments of `RolloutSample`."""
    # TRL's group ids are integers. The shift keeps the hash within a signed 64-bit integer.
    group = int.from_bytes(blake2b(rollout.facts.group_id.encode(), digest_size=8).digest(), "big") >> 1
    for row in rollout.trajectory.rows:
        prompt, completion = _split_conversation(rollout, row)
        yield {
            "prompt": prompt,
            "completion": completion,
            "input_ids": row.ids.astype(np.int64),
            "completion_mask": row.mask.astype(np.int64),
            "old_log_probs": row.logprobs.astype(np.float32),
            "advantage": scalar_advantage(rollout, row),
            "model_version": int(row.versions[row.mask == 1].min()),
            "group_id": group,
            "metrics": reward_metrics(rollout),
        }


def _split_conversation(rollout: TracedRollout, row: Row) -> tuple[list[Json], list[Json]]:
    """Return the row's conversation before its first answer, and from there on."""
    conversation = rollout.transcript.messages_through(row.turns[-1].call_id)
    missing = any(item.answer is None for item in rollout.transcript.exchanges if item.call.id in _calls(row))
    if missing:
        return [], []
    start = next(at for at, (_, call_id) in enumerate(conversation) if call_id is not None)
    messages = [to_wire(message.in_words()) for message, _ in conversation]
    return messages[:start], messages[start:]


def _calls(row: Row) -> set[str]:
    return {turn.call_id for turn in row.turns}


def _lines(rollout: TracedRollout) -> Iterator[Json]:
    for sample in samples(rollout):
        yield {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()
        }
