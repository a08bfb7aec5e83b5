"""Training rows as Parquet: one row per branch, with all fields of `Row`.

    ids, mask, logprobs, versions: lists with one entry per token
    advantages: the same, null if the rollout was not trained
    routed_experts: the same, a list of layers * top_k expert numbers for each token, null where no engine
        reported them; null if none did. routed_layers has the number of layers
    turns: list of {start, end, call_id, agent_id}
    rewards: list of {unit, target, channel, value}
    reward: the one that the rollout is trained on, null if it has none

`policy` is the policy that sampled the trained tokens of a row. Tokens of the policy that no row trains are
listed in the column `excluded` of its first row in the rollout: list of {call_id, start, end, reason}. A
policy without trained tokens in a rollout has no row of it. Needs pyarrow:
`pip install 'harnessgym-rl[export]'`.
"""

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from harnessgym.errors import ConfigError
from harnessgym.traces.atomic_files import replacing
from harnessgym.traces.export import TellsPolicies, TracedRollout, needed
from harnessgym.traces.exports.row_facts import advantages_of
from harnessgym.traces.trajectories import Row

Json = dict[str, Any]
_TOKENS_AT_ONCE = 2_000_000
"""Rows are held in memory and written together once they have this many tokens."""


class Parquet:
    """One file."""

    tells_policies: ClassVar[TellsPolicies] = "rows"
    takes_experts: ClassVar = True

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the rows. Raises `ConfigError` if `out` is a folder or pyarrow is missing."""
        if out.is_dir():
            raise ConfigError(
                f"{out} is a folder; Parquet is one file. Name one, e.g. {out / 'rows.parquet'}."
            )
        with replacing(out) as part:
            return write_rows((row for rollout in rollouts for row in rows(rollout)), part)


def write_rows(records: Iterable[Json], path: Path) -> int:
    """Write rows as they come. Returns how many there were."""
    pa = _pyarrow("pyarrow")
    pq = _pyarrow("pyarrow.parquet")
    schema = _schema()
    written = 0
    held = list[Json]()
    tokens = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in records:
            held.append(row)
            tokens = tokens + len(row["ids"])
            written = written + 1
            if tokens >= _TOKENS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(held, schema))
                held = []
                tokens = 0
        if held:
            writer.write_table(pa.Table.from_pylist(held, schema))
    return written


def rows(rollout: TracedRollout) -> Iterator[Json]:
    """Yield the rows of a rollout, with one value per column."""
    facts = rollout.facts
    trajectory = rollout.trajectory
    rewards = [
        {"unit": item.unit, "target": item.target, "channel": item.channel, "value": item.value}
        for item in rollout.graph.rewards
    ]
    begun = set[str]()
    for index, row in enumerate(trajectory.rows):
        excluded = () if row.policy_id in begun else trajectory.of_policy(row.policy_id).exclusions
        begun.add(row.policy_id)
        yield {
            "rollout_id": facts.id,
            "row": index,
            "run_id": facts.run_id,
            "group_id": facts.group_id,
            "policy": rollout.policies[row.policy_id],
            "task_set": facts.task_set,
            "task_key": facts.task_key,
            "harness": facts.harness,
            "stop_reason": facts.stop_reason,
            "verdict": facts.verdict,
            "reward": rollout.reward,
            "rewards": rewards,
            "ids": row.ids,
            "mask": row.mask,
            "logprobs": row.logprobs,
            "versions": row.versions,
            "advantages": advantages_of(rollout, row),
            "routed_experts": _experts(row),
            "routed_layers": None if row.experts is None else row.experts.experts.shape[1],
            "turns": [
                {"start": turn.start, "end": turn.end, "call_id": turn.call_id, "agent_id": turn.agent_id}
                for turn in row.turns
            ],
            "excluded": [
                {"call_id": item.call_id, "start": item.start, "end": item.end, "reason": item.reason}
                for item in excluded
            ],
        }


def _experts(row: Row) -> list[list[int] | None] | None:
    """Each token's experts, layer after layer; None where they were not reported."""
    if row.experts is None:
        return None
    flat = row.experts.experts.reshape(len(row.ids), -1).tolist()
    return [
        experts if recorded else None for experts, recorded in zip(flat, row.experts.recorded, strict=True)
    ]


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise needed("pyarrow", "parquet") from None


def _schema() -> Any:
    pa = _pyarrow("pyarrow")
    texts = (
        "rollout_id",
        "run_id",
        "group_id",
        "policy",
        "task_set",
        "task_key",
        "harness",
        "stop_reason",
        "verdict",
    )
    reward = pa.struct(
        [("unit", pa.string()), ("target", pa.string()), ("channel", pa.string()), ("value", pa.float64())]
    )
    span = [("start", pa.int32()), ("end", pa.int32()), ("call_id", pa.string())]
    return pa.schema([
        *((name, pa.string()) for name in texts),
        ("row", pa.int32()),
        ("reward", pa.float64()),
        ("rewards", pa.list_(reward)),
        ("ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("advantages", pa.list_(pa.float32())),
        ("routed_experts", pa.list_(pa.list_(pa.uint16()))),
        ("routed_layers", pa.int32()),
        ("turns", pa.list_(pa.struct([*span, ("agent_id", pa.string())]))),
        ("excluded", pa.list_(pa.struct([*span, ("reason", pa.string())]))),
    ])  # fmt: skip
