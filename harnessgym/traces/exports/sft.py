"""Messages for supervised fine-tuning: one JSON object per line and branch.

    {"messages": [...], "tools": [...], "loss_mask": [0, 0, 1, ...], "rollout_id": ..., "reward": ...}

`loss_mask` has one entry per message: 1 for the policy's answers, 0 for everything it was given, including
assistant messages in a prompt and answers of another policy. An answer that several branches share counts in
the first. Side calls and answers that were cut short are not examples. Arguments of tool calls are text, as
the policy wrote them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import TraceError
from harnessgym.traces.atomic_files import write_lines
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.transcript import Exchange, Transcript, to_wire, tools_to_wire

Json = dict[str, Any]
_NO_EXAMPLES = ("aborted", "error", "intent")


class Sft:
    """One line per branch."""

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the lines. Raises `TraceError` if an answer of the policy is not known."""
        return write_lines(rollouts, out, branches)


def branches(rollout: TracedRollout) -> Iterator[Json]:
    """Yield each conversation that no other one continues."""
    transcript = rollout.transcript
    used = set[str]()
    usable = _usable(rollout)
    for leaf in _leaves(transcript, usable):
        conversation = transcript.messages_through(leaf.call.id)
        fresh = [call_id in usable and call_id not in used for _, call_id in conversation]
        used.update(call_id for _, call_id in conversation if call_id is not None)
        yield {
            "messages": [to_wire(message.in_words()) for message, _ in conversation],
            "tools": tools_to_wire(leaf.tools),
            "loss_mask": [int(one) for one in fresh],
            "rollout_id": rollout.id,
            "call_id": leaf.call.id,
            "agent": leaf.agent,
            "reward": rollout.reward,
        }


def _usable(rollout: TracedRollout) -> dict[str, Exchange]:
    """Return the exchanges to learn from, by call. Raises `TraceError` if an answer is not known."""
    usable = [item for item in rollout.transcript.exchanges if item.call.kind not in ("side", "count")]
    usable = [item for item in usable if item.call.status not in _NO_EXAMPLES]
    if rollout.sampled_by is not None:
        usable = [item for item in usable if rollout.policy_of(item.call) == rollout.sampled_by]
    for item in usable:
        if item.answer is None or item.answer_source == "replay":
            why = "; ".join(item.missing) or "its answer is not stored"
            raise TraceError(f"Rollout {rollout.id}: call {item.call.id} is no example to learn from: {why}.")
    return {item.call.id: item for item in usable}


def _leaves(transcript: Transcript, usable: Mapping[str, Exchange]) -> list[Exchange]:
    """Return the exchanges that end a branch: no other exchange continues them with their answer.

    Exchanges in between may be ones that are not usable, such as those of another policy.
    """
    by_id = {item.call.id: item for item in transcript.exchanges}
    inner = set[str]()
    for item in usable.values():
        at = item.continues
        end = item.shared
        while at in by_id and at not in inner:
            before = by_id[at]
            if end >= before.shared + len(before.new) + 1:
                inner.add(at)
            at = before.continues
            end = min(end, before.shared)
    return [item for item in usable.values() if item.call.id not in inner]
