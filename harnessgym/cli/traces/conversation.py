"""Prints a rollout as a conversation."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harnessgym.cli.traces.call_table import EXPECTED_BREAKS, AgentLabels, call_json, heading, rollout_json
from harnessgym.cli.traces.printed import brief, console, print_json
from harnessgym.cli.traces.source import traced

if TYPE_CHECKING:
    from harnessgym.message import Message
    from harnessgym.traces.export import TracedRollout
    from harnessgym.traces.transcript import Exchange

_INDENT = (0, 0, 0, 2)
_SIDE = ("side", "count")


def print_conversation(
    source: str, rollout: str, policy: Sequence[str] | None, *, full: bool, as_json: bool
) -> None:
    """Print one rollout."""
    with traced(source, rollout, policy) as traced_rollout:
        numbers = {exchange.call.id: at for at, exchange in enumerate(traced_rollout.transcript.exchanges)}
        labels = AgentLabels(traced_rollout.transcript.agents, traced_rollout.facts.harness)
        if as_json:
            print_json(_json(traced_rollout, numbers, labels))
            return
        out = console()
        out.print(_head(traced_rollout))
        for exchange in traced_rollout.transcript.exchanges:
            _Printer(out, numbers, labels, full).exchange(exchange)


def _json(found: "TracedRollout", numbers: dict[str, int], labels: AgentLabels) -> dict[str, Any]:
    calls = [
        {
            **call_json(item.call, numbers, labels),
            "new": [asdict(message) for message in item.new],
            "answer": None if item.answer is None else asdict(item.answer),
            "answer_source": item.answer_source,
            "missing": list(item.missing),
        }
        for item in found.transcript.exchanges
    ]
    rollout = rollout_json(found.facts)
    graph = found.graph
    return {"rollout": rollout, "rewards": graph.rewards, "agents": graph.agents, "calls": calls}


def _head(rollout: "TracedRollout") -> Text:
    """The head: the rollout and its result."""
    facts = rollout.facts
    ended = facts.status if facts.stop_reason is None else f"{facts.status}: {facts.stop_reason}"
    line = Text(f"Rollout {facts.id}", style="bold")
    line.append(
        f"  {facts.harness} · {facts.task_set}/{facts.task_key} · {ended} · verdict {facts.verdict or '-'}",
        style="dim",
    )
    sampled = sum(item.call.completion_len or 0 for item in rollout.transcript.exchanges)
    trajectory = rollout.trajectory
    line.append(
        "\n"
        f"{len(rollout.transcript.exchanges)} calls, {len(trajectory.rows)} training rows, {sampled:,} "
        f"tokens sampled, {trajectory.trained:,} of them trainable"
    )
    for reward in rollout.graph.rewards:
        of = "" if reward.unit == "rollout" else f" of {reward.unit} {reward.target}"
        line.append(f"\nreward {reward.channel}{of}: {reward.value:g}", style="bold")
        line.append(f"  {reward.source}{f': {reward.detail}' if reward.detail else ''}", style="dim")
    return line


class _Printer:
    """Prints exchanges."""

    def __init__(self, out: Console, numbers: dict[str, int], labels: AgentLabels, full: bool) -> None:
        self.out = out
        self.numbers = numbers
        self.labels = labels
        self.full = full

    def exchange(self, item: "Exchange") -> None:
        """Print a call: heading, break if any, new messages, answer."""
        call = item.call
        self.out.print()
        self.out.print(heading(call, self.numbers, self.labels), soft_wrap=True)
        if call.break_class is not None:
            started = call.break_class in EXPECTED_BREAKS
            self._indented(Text(f"history break: {call.break_class}", style="dim" if started else "bold red"))
            if call.break_detail:
                self._indented(Text(call.break_detail, style="dim" if started else "red"))
        dim = "dim" if call.kind in _SIDE else ""
        for message in item.new:
            self._message(message, message.role, dim or ("dim" if message.role == "system" else "blue"), dim)
        if item.answer is not None:
            label = self.labels.name(call.agent_id)
            replayed = f"{label} (as it was sent back)" if item.answer_source == "replay" else label
            self._message(item.answer, replayed, dim or f"bold {self.labels.colour(call.agent_id)}", dim)
        for missing in item.missing:
            self._indented(Text(f"missing: {missing}", style="yellow"))
        if call.error:
            self._indented(Text(f"error: {call.error}", style="red"))

    def _message(self, message: "Message", label: str, style: str, dim: str) -> None:
        name = f" of {message.tool_call_id}" if message.role == "tool" and message.tool_call_id else ""
        line = Text(f"{label}{name}: ", style=style)
        if message.reasoning:
            line.append(f"({brief(message.reasoning, full=self.full)}) ", style="dim italic")
        line.append(brief(message.shown_text, full=self.full), style=dim)
        for image in message.images:
            line.append(f" [image {image if self.full else image[:40]}]", style="dim")
        if len(line) > len(label) + 2 or not message.tool_calls:
            self._indented(line)
        for call in message.tool_calls:
            made = Text(f"{label} → ", style=style).append(call.name, style=f"bold {dim}".strip())
            made.append(f"({brief(call.arguments, full=self.full)})", style=dim).append(
                f"  {call.id}", style="dim"
            )
            self._indented(made)

    def _indented(self, text: Text) -> None:
        if self.out.is_terminal:
            self.out.print(Padding(text, _INDENT, expand=False))
        else:  # piped: long lines are not wrapped
            for line in text.split("\n", allow_blank=True):
                self.out.print(Text("  ").append_text(line), soft_wrap=True)
