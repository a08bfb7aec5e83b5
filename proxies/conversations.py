"""What the calls of a session were asked, as far as it takes to say where a later request leaves them.

Messages are held by reference, and of each branch only its latest call's: they contain the earlier ones.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harnessgym.message import Message
from harnessgym.store.calls import RecordedCall
from harnessgym.traces.diagnosis import CallConversation
from harnessgym.traces.forest import Forest
from proxies.dialect import ModelRequest

_BRANCHES = 16
"""Branches whose messages are held; of more, those that rested longest are let go."""


class Conversations:
    """The latest conversation of each branch, and how calls ended."""

    def __init__(self, branches: int = _BRANCHES) -> None:
        self._branches = branches
        self._latest: OrderedDict[str, CallConversation] = OrderedDict()
        self._endings: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        """Call to how many answers of the policy it continues."""

    def begin(self, call_id: str, request: ModelRequest | None, parent_id: str | None) -> None:
        """A call begins; it takes the place of the call that it continues. Without its request it can be
        compared with nothing, and raw prompts have no messages to compare.
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
        """A call is committed."""
        self._endings[call_id] = finish_reason
        if call_id in self._latest:
            self._latest[call_id] = replace(self._latest[call_id], answer=answer)

    def ending(self, call_id: str) -> str:
        """The finish reason of a call; empty if it is not known."""
        return self._endings.get(call_id, "")

    def newest_first(self) -> list[CallConversation]:
        """What there is to compare a request with."""
        return list(reversed(self._latest.values()))


def latest(recorded: Sequence[RecordedCall]) -> list[RecordedCall]:
    """The calls of a session, in order, whose requests `Conversations` would hold after them: the last of
    each branch.
    """
    continued = {call.parent_call_id for call in recorded}
    return [call for call in recorded if call.id not in continued][-_BRANCHES:]


@dataclass
class PolicyContext:
    """Its tokens, and what a later request is compared with."""

    forest: Forest
    heads: set[str] = field(default_factory=set)
    """Digests of every leading part of every request so far."""
    conversations: Conversations = field(default_factory=Conversations)
    """What the latest calls were asked."""
