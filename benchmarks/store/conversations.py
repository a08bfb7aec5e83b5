"""Conversations as a proxy stores them: calls of 600 tokens, of which 200 are sampled, with the bodies
that harnesses send.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harnessgym.store import TraceStore, new_id, policies, rollouts, runs, sessions
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task
from harnessgym.tokens import TokenArray, VersionSpan, hash_ids
from proxies.reading import BodyReader, ReadBody, digest_of, split_of

READ, SAMPLED = 400, 200
"""Tokens that a call adds to its prompt, and that it samples."""
_WORDS = [
    "the",
    "file",
    "has",
    "a",
    "test",
    "that",
    "fails",
    "when",
    "value",
    "is",
    "none",
    "so",
    "return",
    "an",
    "empty",
    "list",
    "def",
    "self",
    "import",
    "path",
    "error",
    "line",
]
_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Does one thing well. " * 8, "parameters": {}},
    }
    for name in ("read_file", "write_file", "run", "search")
]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call, ready to be stored."""

    intent: CallIntent
    prompt: Segment
    body: bytes
    outcome: CallOutcome
    read: ReadBody


@dataclass
class Conversation:
    """One session whose every call goes on from the one before."""

    session_id: str
    rollout_id: str
    random: random.Random
    _reader: BodyReader = field(default_factory=BodyReader)
    _messages: list[str] = field(default_factory=list)
    _length: int = 0
    _end: str | None = None
    _last: str | None = None
    _ordinal: int = 0

    def turn(self) -> Turn:
        """The next call. Its prompt's hash is that of what it adds: hashing whole prompts is the upstream
        client's work.
        """
        body = self._body()
        read = self._reader.read(body)
        assert isinstance(read, ReadBody)
        prompt = Segment(new_id(), self.session_id, "prompt", self._end, self._draw(READ))
        call_id, digest = new_id(), digest_of(read)
        self._length += READ
        evidence = "none" if self._last is None else "token_prefix"
        intent = CallIntent(
            call_id, self.session_id, self.rollout_id, self._ordinal, "chat", "policy", "keep", digest, digest, self._length,
            hash_ids(prompt.ids), prompt.id, "engine-0", {"temperature": 1.0, "max_tokens": 512},
            {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 512}, None, self._last, evidence,
        )  # fmt: skip
        completion = Segment(
            new_id(), self.session_id, "completion", prompt.id, self._draw(SAMPLED), self._logprobs()
        )
        usage = {"prompt_tokens": self._length, "completion_tokens": SAMPLED}
        outcome = CallOutcome(
            call_id, completion, (VersionSpan(0, SAMPLED, 3),), digest, "stop", 151_645, "engine-0", usage,
            {"queued_s": 0.0012, "first_s": 0.0345, "total_s": 0.8123},
        )  # fmt: skip
        self._messages.append(_message("assistant", self._text(SAMPLED)))
        self._length, self._end, self._last, self._ordinal = (
            self._length + SAMPLED,
            completion.id,
            call_id,
            self._ordinal + 1,
        )
        return Turn(intent, prompt, body, outcome, read)

    def _body(self) -> bytes:
        self._messages.append(_message("user" if self._ordinal == 0 else "tool", self._text(READ)))
        return b'{"model":"policy","messages":[%s],"tools":%s,"temperature":1.0,"stream":true}' % (
            ",".join(self._messages).encode(),
            json.dumps(_TOOLS).encode(),
        )

    def _draw(self, length: int) -> TokenArray:
        return TokenArray(self.random.choices(range(150_000), k=length))

    def _logprobs(self) -> list[float]:
        return [-0.5 * number for number in self.random.choices(range(20), k=SAMPLED)]

    def _text(self, tokens: int) -> str:
        """As much text as so many tokens are, at 4 characters each; no two are alike."""
        words = self.random.choices(_WORDS, k=tokens // 2 + 50)
        return " ".join(f"{word} {self.random.randrange(1000)}" for word in words)[: 4 * tokens]


def begin(store: TraceStore, count: int, seed: int = 0) -> list[Conversation]:
    """Sessions of as many rollouts."""

    def work(conn: Any) -> list[Conversation]:
        run = runs.add(conn, "bench", {}, "bench", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        rollouts.submit(
            conn,
            GroupSpec(run, task, policy, "train", 0, 0, {}, ("h",) * count, "process", tuple(range(count))),
        )
        rows = rollouts.claim(conn, run, "bench", 3600.0, count)
        return [
            Conversation(
                sessions.add(conn, row.id, new_id(), sampling={}).id,
                row.id,
                random.Random(seed * 1000 + slot),
            )
            for slot, row in enumerate(rows)
        ]

    return store.write(work)


def turns(conversation: Conversation, count: int) -> Iterator[Turn]:
    """Its next calls."""
    for _ in range(count):
        yield conversation.turn()


def split(turn: Turn) -> Any:
    """The body as the store takes it."""
    return split_of(turn.read)


def _message(role: str, text: str) -> str:
    return json.dumps({"role": role, "content": text})
