"""A harness and an engine around `continue_from`, without a proxy: what is asked, what is sampled, what it
becomes.
"""

import json
from collections.abc import Sequence
from typing import Any

from harnessgym.message import Message, context_digest
from harnessgym.traces.forest import Forest
from proxies.continuation import Prompt, continue_from
from proxies.conversations import Conversations, SeenPrefixes
from proxies.dialect import ModelRequest
from proxies.dialects.chat import Chat
from proxies.language import PolicyLanguage
from proxies.session import answer_digest

Json = dict[str, Any]


class Talk:
    """One session's calls, in order."""

    def __init__(self, language: PolicyLanguage, history: str = "keep") -> None:
        self.language, self.history = language, history
        self.forest, self.conversations = Forest("s"), Conversations()
        self.seen_prefixes = SeenPrefixes()
        self.prompts: list[Prompt] = []
        self.sampled: list[list[int]] = []

    def call(
        self,
        messages: Sequence[Json],
        sampled: Sequence[int],
        tools: Sequence[Json] = (),
        finish_reason: str = "stop",
    ) -> Message:
        """Ask over the wire form of chat completions; the policy samples these tokens."""
        request = Chat().parse(
            json.dumps({"model": "m", "messages": list(messages), "tools": list(tools)}).encode(), {}
        )
        return self.ask(request, sampled, finish_reason)

    def ask(self, request: ModelRequest, sampled: Sequence[int], finish_reason: str = "stop") -> Message:
        """Ask; the policy samples these tokens."""
        number = len(self.prompts)
        chain = self.forest.chain(context_digest(request.tools), request.messages)
        prompt = continue_from(
            self.forest, self.seen_prefixes, self.conversations, chain, request, self.language, self.history
        )
        parent = prompt.parent
        if parent is not None:
            assert list(prompt.ids) == [*self.forest.ids(parent.segment_id), *prompt.added]
        segment, _ = self.forest.add_prompt(prompt.added, None if parent is None else parent.segment_id)
        parser = self.language.parser(call_prefix=f"call_{number}_", tools=True)
        parser.feed(sampled)
        answer = parser.finish()
        digest = answer_digest(chain[-1], answer)
        self.seen_prefixes.add_request(chain, 0)
        self.seen_prefixes.add(digest)
        self.conversations.begin(f"c{number}", request, None if parent is None else parent.call_id)
        self.forest.add_completion(f"c{number}", segment.id, sampled, [0.0] * len(sampled), digest)
        self.forest.add_replays(chain[-1], answer, digest)
        self.conversations.answer(f"c{number}", answer, finish_reason)
        self.prompts.append(prompt)
        self.sampled.append(list(sampled))
        return answer

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text."""
        return self.language.renderer.written(ids).decode()

    def encode(self, text: str) -> list[int]:
        """The canonical tokens of a text."""
        return self.language.renderer.encode(text)


def replay(answer: Message) -> Json:
    """An answer as clients send it back that keep all of it."""
    out: Json = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        out["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return out


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def result(text: str, call_id: str) -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def tool(name: str, *parameters: str) -> Json:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}
