"""The requests of a session's latest calls, kept so that a later request can be compared with them.

Messages are held by reference, and only those of each branch's latest call: they contain the earlier ones.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harnessgym.message import Message
from harnessgym.store.calls import RecordedCall
from harnessgym.traces.diagnosis import CallConversation
from harnessgym.traces.forest import Forest
from proxies.dialect import ModelRequest

_BRANCHES = 16
"""Branches whose messages are held. The least recently used are dropped first."""


class Conversations:
    """The latest conversation of each branch, and the finish reason of each call."""

    def __init__(self, branches: int = _BRANCHES) -> None:
        self._branches = branches
        self._latest: OrderedDict[str, CallConversation] = OrderedDict()
        self._endings: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        """Call id to the number of the policy's answers that it continues."""

    def begin(self, call_id: str, request: ModelRequest | None, parent_id: str | None) -> None:
        """Add a call; it replaces the call that it continues.

        A call whose request is None, or is a raw prompt, has no messages to compare: only its turn is
        counted.
        """
        turns = self._turns.setdefault(call_id, 0 if parent_id is None else self._turns.get(parent_id, 0) + 1)
        if request is None or request.prompt is not None:
            return
        if parent_id is not None:
            self._latest.pop(parent_id, None)
        self._latest[call_id] = CallConversation(call_id, request.messages, request.tools, turns=turns)
        while len(self._latest) > self._branches:
            self._latest.popitem(last=False)

    def answer(self, call_id: str, answer: Message, finish_reason: str) -> None:
        """Add the answer of a committed call."""
        self._endings[call_id] = finish_reason
        if call_id in self._latest:
            self._latest[call_id] = replace(self._latest[call_id], answer=answer)

    def ending(self, call_id: str) -> str:
        """The finish reason of a call; empty if unknown."""
        return self._endings.get(call_id, "")

    def newest_first(self) -> list[CallConversation]:
        """The conversations to compare a request with, newest first."""
        return list(reversed(self._latest.values()))


def latest(recorded: Sequence[RecordedCall]) -> list[RecordedCall]:
    """The last call of each branch, in order: those whose requests `Conversations` would hold."""
    continued = {call.parent_call_id for call in recorded}
    return [call for call in recorded if call.id not in continued][-_BRANCHES:]


class SeenPrefixes:
    """Digests of the beginnings of earlier requests: after each of their messages, and after their answers.

    Of requests that begin anew, only the newest have those after every message. Otherwise a harness that
    rewrites its history in every turn would leave as many digests as messages each time.
    """

    def __init__(self, begun: int = _BRANCHES) -> None:
        self._kept: set[str] = set()
        self._begun: deque[frozenset[str]] = deque(maxlen=begun)

    def add(self, digest: str) -> None:
        """Add a whole request, or one with its answer."""
        self._kept.add(digest)

    def add_request(self, chain: Sequence[str], known: int) -> None:
        """Add a request, the digests of whose first `known` messages were added with earlier ones."""
        if known:
            self._kept.update(chain[known:])
        elif chain:
            self._kept.add(chain[-1])
            self._begun.append(frozenset(chain[:-1]))

    def __contains__(self, digest: object) -> bool:
        return digest in self._kept or any(digest in begun for begun in self._begun)

    def __bool__(self) -> bool:
        return bool(self._kept)


@dataclass
class PolicyContext:
    """One policy's view of a session: its tokens, and what a later request is compared with.

    Each policy continues only its own answers. What another policy said is context, like a tool's message: it
    is rendered in this policy's language and never counts as sampled tokens here.
    """

    forest: Forest
    seen_prefixes: SeenPrefixes = field(default_factory=SeenPrefixes)
    conversations: Conversations = field(default_factory=Conversations)
    """The latest requests."""
