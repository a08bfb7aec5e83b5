"""verl `AgentLoopOutput`: one JSON object per line and branch, for `AgentLoopOutput.model_validate_json`.

Fields are those of `verl/experimental/agent_loop/agent_loop.py`. The prompt ends before the first trained
token. `num_turns` counts as verl's tool agent loop does: a user or tool turn before each assistant turn.
`extra_fields` holds what verl has no field for. `routed_experts` is given as nested lists
[tokens - 1, layers, top_k], of all tokens but the last; verl wants an array of them. It is null if an engine
did not report every one of these tokens.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from harnessgym.traces.atomic_files import write_lines
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.exports.row_facts import first_trained, reward_metrics
from harnessgym.traces.trajectories import Row


class Verl:
    """One line per training row."""

    takes_experts: ClassVar = True

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the lines."""
        return write_lines(rollouts, out, outputs)


def outputs(rollout: TracedRollout) -> Iterator[dict[str, Any]]:
    """Yield the rows of a rollout as `AgentLoopOutput` fields."""
    facts = rollout.facts
    for index, row in enumerate(rollout.trajectory.rows):
        start = first_trained(row)
        yield {
            "prompt_ids": row.ids[:start].tolist(),
            "response_ids": row.ids[start:].tolist(),
            "response_mask": row.mask[start:].tolist(),
            "response_logprobs": row.logprobs[start:].astype(float).tolist(),
            "routed_experts": _experts(row),
            "multi_modal_data": None,
            "reward_score": rollout.reward,
            "num_turns": 2 * len(row.turns),
            "metrics": {"generate_sequences": 0.0, "tool_calls": 0.0},
            "extra_fields": {
                "rollout_id": facts.id,
                "group_id": facts.group_id,
                "task": f"{facts.task_set}/{facts.task_key}",
                "row": index,
                "policy": rollout.policies[row.policy_id],
                "response_versions": row.versions[start:].tolist(),
                "rewards": reward_metrics(rollout),
            },
        }


def _experts(row: Row) -> list[list[list[int]]] | None:
    """The experts of all tokens but the last. verl has no mark for a token without them."""
    if row.experts is None or not row.experts.recorded[:-1].all():
        return None
    experts: list[list[list[int]]] = row.experts.experts[:-1].tolist()
    return experts
