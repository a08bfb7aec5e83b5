"""A planner and two workers on the official openai SDK: they bring the ledger of two sites in line with what
was counted.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python two_agents.py [--folder FOLDER] [--seed 7]

The planner starts a worker for each site; both work at the same time, write to each other, and return; the
planner puts together what they found and posts it. A human approves every posting (the task says how), and a
guard refuses to erase the history. The program knows nothing about being trained. It tells of itself in
OpenTelemetry spans, as many agents do.
"""

import argparse
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import two_agents_task as task
from openai import OpenAI
from two_agents_spans import Span, Spans, spans

PLANNER = (
    "You plan. Start a worker for each site with spawn_agent, both at once; give each its site as name. Put "
    "together what they "
    "return, post it, and say in one sentence what was done."
)
WORKER = (
    "You work for the {name} site. Compare its ledger with what was counted, tell your colleague at the "
    "other site what "
    "differs, and return which differences are transfers and which are corrections."
)
MAX_TURNS = 8


def tool(name: str, description: str, /, **arguments: str) -> Any:
    """A tool; arguments by name and JSON type."""
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


PLANNER_TOOLS = [
    tool("spawn_agent", "Start a worker and wait for what it returns.", name="string", task="string"),
    tool(
        "post",
        "Post transfers and corrections to the ledger. A human approves.",
        transfers="array",
        corrections="object",
    ),
    tool("erase_history", "Erase the history of postings.", reason="string"),
]
WORKER_TOOLS = [
    tool("compare", "What was counted at your site minus what the ledger says."),
    tool("send_message", "Write to your colleague at the other site.", text="string"),
]


@dataclass
class Agent:
    """A conversation, and the span of its run."""

    name: str
    tools: list[Any]
    messages: list[Any]
    span: Span
    inbox: list[str] = field(default_factory=list)
    """What the colleague wrote since the last turn."""
    answer: str | None = None
    """What it returns, once it does."""


class Office:
    """The agents at their task."""

    def __init__(self, client: OpenAI, traced: Spans, folder: Path) -> None:
        self._client, self._spans, self._folder = client, traced, folder
        self._model = os.environ.get("OPENAI_MODEL", "policy")

    def plan(self) -> str:
        """The planner, from the instruction to its last word."""
        planner = self._agent(
            "planner", PLANNER, task.read(self._folder, "task")["instruction"], PLANNER_TOOLS, None
        )
        for _ in range(MAX_TURNS):
            calls = self._ask(planner)
            if not calls:
                break
            starts = [call for call in calls if call["function"]["name"] == "spawn_agent"]
            results = self._work(planner, starts) if starts else {}
            for call in calls:
                result = results[call["id"]] if call in starts else self._use(planner, call)
                planner.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        planner.span.end()
        return planner.answer or ""

    def _work(self, planner: Agent, calls: list[Any]) -> dict[str, str]:
        """Workers side by side, turn by turn; each reads between turns what its colleague wrote. Returns
        what they return.
        """
        running: dict[str, tuple[Agent, Any]] = {}
        for call in calls:
            given = arguments(call)
            name, asked = str(given.get("name")), str(given.get("task"))
            tool_span = self._tool_span(planner, call)
            running[call["id"]] = (
                self._agent(name, WORKER.format(name=name), asked, WORKER_TOOLS, tool_span),
                tool_span,
            )
        workers = [worker for worker, _ in running.values()]
        with ThreadPoolExecutor(len(workers)) as side_by_side:
            for _ in range(MAX_TURNS):
                busy = [worker for worker in workers if worker.answer is None]
                if not busy:
                    break
                for worker, asked_for in zip(busy, side_by_side.map(self._ask, busy), strict=True):
                    self._turn(worker, asked_for, [other for other in workers if other is not worker])
                for worker in busy:
                    worker.messages += [
                        {"role": "user", "content": text} for text in worker.inbox if worker.answer is None
                    ]
                    worker.inbox.clear()
        for worker, tool_span in running.values():
            worker.span.end(None if worker.answer else "It came to no end.")
            tool_span.end()
        return {call_id: worker.answer or "It came to no end." for call_id, (worker, _) in running.items()}

    def _turn(self, worker: Agent, calls: list[Any], others: list[Agent]) -> None:
        """What a worker's answer calls for."""
        for call in calls:
            result = self._use(worker, call, others)
            worker.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def _agent(self, name: str, system: str, asked: str, tools: list[Any], parent: Any) -> Agent:
        said = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        span = self._spans.start(f"invoke_agent {name}", parent, said)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
        return Agent(name, tools, messages, span)

    def _ask(self, agent: Agent) -> list[Any]:
        """One call of the model. Returns the tools that it calls."""
        said = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._model,
            "gen_ai.agent.name": agent.name,
        }
        span = self._spans.start(f"chat {self._model}", agent.span, said)
        answer = self._client.chat.completions.create(
            model=self._model, messages=agent.messages, tools=agent.tools
        )
        span.set({"gen_ai.response.id": answer.id})
        span.end()
        message = answer.choices[0].message.model_dump(
            include={"role", "content", "tool_calls"}, exclude_none=True
        )
        agent.messages.append(message)
        calls: list[Any] = message.get("tool_calls") or []
        if not calls:
            agent.answer = message.get("content") or ""
            print(f"{agent.name}: {agent.answer}")
        return calls

    def _tool_span(self, agent: Agent, call: Any) -> Span:
        said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call["function"]["name"]}
        said |= {
            "gen_ai.tool.call.id": call["id"],
            "gen_ai.tool.call.arguments": call["function"]["arguments"],
        }
        span: Span = self._spans.start(f"execute_tool {call['function']['name']}", agent.span, said)
        return span

    def _use(self, agent: Agent, call: Any, others: list[Agent] | None = None) -> str:
        """What a tool says."""
        span, name, given = self._tool_span(agent, call), call["function"]["name"], arguments(call)
        error = None
        if name == "compare" and agent.tools is WORKER_TOOLS and agent.name in task.SITES:
            result = json.dumps(task.differences(self._folder, agent.name))
        elif name == "send_message" and agent.tools is WORKER_TOOLS:
            result = self._deliver(agent, str(given.get("text")), others or [], span)
        elif name == "post" and agent.tools is PLANNER_TOOLS:
            result = self._post(given, span)
        elif name == "erase_history" and agent.tools is PLANNER_TOOLS:
            result = error = "Refused by the guard: the history of postings is never erased."
            span.set({"error.type": "refused"})
        else:
            result = error = f"There is no tool {name}."
        print(f"{agent.name}: {name}({call['function']['arguments']}) -> {result}")
        span.set({"gen_ai.tool.call.result": result})
        span.end(error)
        return result

    def _deliver(self, agent: Agent, text: str, others: list[Agent], span: Span) -> str:
        for other in others:
            other.inbox.append(f"Your colleague at the {agent.name} site writes: {text}")
            span.happened("message", {"agent": agent.name, "to": other.name, "channel": "peer", "text": text})
        return "sent"

    def _post(self, given: dict[str, Any], span: Span) -> str:
        """A human looks at every posting first; the task says what they say."""
        approved = task.read(self._folder, "task")["approvals"]["post"] == "yes"
        span.happened(
            "human_intervention",
            {"action": "approval", "approved": approved, "text": "yes" if approved else "no"},
        )
        if not approved:
            return "The human said no."
        posting = {"transfers": given.get("transfers"), "corrections": given.get("corrections")}
        (self._folder / "posted.json").write_text(json.dumps(posting))
        history = [*task.read(self._folder, "history"), "posted"]
        (self._folder / "history.json").write_text(json.dumps(history))
        return "posted"


def arguments(call: Any) -> dict[str, Any]:
    """What a tool is called with; nothing if that is no JSON object."""
    try:
        given = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def main() -> None:
    """Make the task if there is none, run the agents, say how it went."""
    parser = argparse.ArgumentParser(description="A planner and two workers reconcile a ledger.")
    parser.add_argument("--folder", type=Path, help="the task's folder; a temporary one if not given")
    parser.add_argument("--seed", type=int, default=7, help="of the task that is made where there is none")
    parser.add_argument(
        "--spans", choices=("auto", "sdk", "json"), default="auto", help="what sends OpenTelemetry spans"
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="two_agents-"))
    if not (folder / "task.json").exists():
        task.make(folder, options.seed)
    traced = spans(options.spans)
    with OpenAI() as client:
        Office(client, traced, folder).plan()
    traced.close()
    print("\n".join(task.verify(folder)) or f"The books in {folder} are right.")


if __name__ == "__main__":
    main()
