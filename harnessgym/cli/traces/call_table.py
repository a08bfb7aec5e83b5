"""The calls of a rollout as a table per session, with the call that each continues."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harnessgym.cli.traces.printed import console, plain_table, print_json
from harnessgym.cli.traces.source import traced

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from harnessgym.store.facts import AgentFacts, CallFacts, RolloutFacts
    from harnessgym.traces.graph import Graph

_COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "bright_blue",
    "bright_red",
    "bright_cyan",
    "bright_magenta",
)


@dataclass
class AgentLabels:
    """Unique names and colours of a rollout's agents. Later agents of the same name are numbered."""

    agents: "Sequence[AgentFacts]"
    nameless: str = "agent"
    """Name shown for calls of no known agent."""
    _names: dict[str, str] = field(init=False)
    _colours: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        seen: Counter[str] = Counter()
        self._names = {}
        self._colours = {}
        for at, agent in enumerate(self.agents):
            seen[agent.name] += 1
            number = seen[agent.name]
            self._names[agent.id] = agent.name if number == 1 else f"{agent.name} #{number}"
            self._colours[agent.id] = _COLOURS[at % len(_COLOURS)]

    def name(self, agent_id: str | None) -> str:
        """The name of an agent."""
        return self._names.get(agent_id or "", self.nameless)

    def colour(self, agent_id: str | None) -> str:
        """The colour of an agent."""
        return self._colours.get(agent_id or "", _COLOURS[0])


EXPECTED_BREAKS = ("sub_agent",)
"""Break classes of calls that begin a new conversation on purpose. They lose nothing."""


def call_json(call: "CallFacts", numbers: dict[str, int], labels: AgentLabels) -> dict[str, Any]:
    """A call as JSON values, without its texts."""
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
    """A rollout as JSON values."""
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


_HEADS = (
    "#", "continues", "agent", "kind", "status", "protocol", "prompt", "sampled", "versions", "finish",
    "break",
)  # fmt: skip


def print_calls(source: str, rollout: str, as_json: bool) -> None:
    """Print the calls of one rollout."""
    with traced(source, rollout) as traced_rollout:
        graph = traced_rollout.graph
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
