"""A call and a rollout in the words of `--json`, and a call's heading on the screen."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harnessgym.cli.traces.agent_labels import AgentLabels

if TYPE_CHECKING:
    from rich.text import Text

    from harnessgym.traces.facts import CallFacts, RolloutFacts

EXPECTED_BREAKS = ("sub_agent",)
"""Classes of calls that begin a conversation of their own: nothing is lost by them."""


def call_json(call: "CallFacts", numbers: dict[str, int], labels: AgentLabels) -> dict[str, Any]:
    """A call without its texts."""
    return {
        "number": numbers[call.id],
        "id": call.id,
        "agent": labels.name(call.agent_id),
        "agent_id": call.agent_id,
        "kind": call.kind,
        "side_call": call.side_call,
        "status": call.status,
        "protocol": call.protocol,
        "continues": numbers.get(call.parent_call_id or ""),
        "prompt_tokens": call.prompt_len,
        "sampled_tokens": call.completion_len,
        "versions": versions(call),
        "break_class": call.break_class,
        "break_detail": call.break_detail,
        "finish_reason": call.finish_reason,
        "error": call.error,
    }


def rollout_json(rollout: "RolloutFacts") -> dict[str, Any]:
    """A rollout."""
    return asdict(rollout)


def versions(call: "CallFacts") -> list[int]:
    """The policy versions that sampled a call, in order."""
    return [span.version for span in call.versions]


def heading(call: "CallFacts", numbers: dict[str, int], labels: AgentLabels) -> "Text":
    """One line about a call."""
    from rich.text import Text

    side = call.kind in ("side", "count")
    colour = "dim" if side else labels.colour(call.agent_id)
    parts = [call.protocol]
    if side or call.kind != "policy":
        parts.append(f"{call.kind} call{f' ({call.side_call})' if call.side_call else ''}")
    if (parent := numbers.get(call.parent_call_id or "")) is not None:
        parts.append(f"continues #{parent}")
    parts.append(f"{call.prompt_len:,} prompt + {call.completion_len or 0:,} sampled tokens")
    if call.versions:
        parts.append("version " + ",".join(map(str, versions(call))))
    parts.append(call.finish_reason or call.status)
    if call.status in ("intent", "aborted", "error", "undelivered") and call.finish_reason:
        parts.append(call.status)
    line = Text(
        f"#{numbers[call.id]} {labels.name(call.agent_id)}", style=colour if side else f"bold {colour}"
    )
    line.append("  " + " · ".join(parts), style="dim")
    return line
