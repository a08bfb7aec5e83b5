"""The calls of a rollout as a table, session by session: the forest they form."""

from typing import TYPE_CHECKING

from harnessgym.cli.traces.agent_labels import AgentLabels
from harnessgym.cli.traces.call_facts import call_json, rollout_json, versions
from harnessgym.cli.traces.opened import traced
from harnessgym.cli.traces.printed import console, plain_table, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from harnessgym.traces.graph import Graph

_HEADS = (
    "#", "continues", "agent", "kind", "status", "protocol", "prompt", "sampled", "versions", "finish", "break",
)  # fmt: skip


def print_calls(source: str, rollout: str, as_json: bool) -> None:
    """The calls of one rollout."""
    with traced(source, rollout) as found:
        graph = found.graph
    labels = AgentLabels(graph.agents, graph.rollout.harness)
    numbers = {name: at for at, name in enumerate(graph.calls)}
    if as_json:
        made = [call_json(call, numbers, labels) for call in graph.calls.values()]
        print_json(
            {
                "rollout": rollout_json(graph.rollout),
                "rewards": graph.rewards,
                "agents": graph.agents,
                "calls": made,
            }
        )
        return
    for session_id in dict.fromkeys(call.session_id for call in graph.calls.values()):
        console().print(_table(graph, session_id, numbers, labels))


def _table(graph: "Graph", session_id: str, numbers: dict[str, int], labels: AgentLabels) -> "Table":
    table = plain_table(*_HEADS, right=("#", "continues", "prompt", "sampled"), title=f"Session {session_id}")
    for call in graph.calls.values():
        if call.session_id != session_id:
            continue
        parent = numbers.get(call.parent_call_id or "")
        table.add_row(
            str(numbers[call.id]),
            "" if parent is None else str(parent),
            labels.name(call.agent_id),
            call.side_call or call.kind,
            call.status,
            call.protocol,
            str(call.prompt_len),
            "" if call.completion_len is None else str(call.completion_len),
            ",".join(map(str, versions(call))),
            call.finish_reason or "",
            call.break_class or "",
            style="dim" if call.kind in ("side", "count") else None,
        )
    return table
