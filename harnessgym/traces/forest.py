"""The forest of one session: all prompt and sampled tokens of its calls, each stored once.

A call continues another only if prompt + completion of the first is a token prefix of the second's prompt.
Message digests only say where to look. The proxy grows a forest call by call; reconstruction builds the same
forest from the store. The time to add a call is proportional to what the call adds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from harnessgym.errors import TraceError
from harnessgym.message import Message, chain_digests
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.tables import new_id
from harnessgym.tokens import PieceTokens, TokenArray, TokenIds, as_array, hash_ids, pack_ids
from harnessgym.traces.shared_pieces import SharedPieces

_CONVERSATIONS = 4
"""Number of requests that are remembered. A request that continues one of them costs only what it adds. There
are several because sub-agents take turns."""

_THINK = "<think>"
_THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a new request continues: after the completion of `call_id`.

    The request's messages from index `matched` on are new.
    """

    call_id: str
    segment_id: str
    matched: int
    """How many leading messages are covered. The last of them is the call's answer."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the path from the root through a segment."""

    length: int
    """Tokens from the root through the segment."""
    hasher: "xxhash.xxh3_128"
    """Hash state after those tokens; copied, never updated."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The leading part of a request whose digests are final: every answer in it is one of ours."""

    context: str
    messages: tuple[Message, ...]
    digests: list[str]

    def shared(self, context: str, messages: Sequence[Message]) -> int:
        """Return how many leading messages another request shares."""
        # Compares by identity where it can: requests of one conversation mostly hold the very same objects,
        # and comparing the texts of a long conversation with every turn would cost too much.
        if context != self.context:
            return 0
        if self.messages == tuple(messages[: len(self.messages)]):
            return len(self.messages)
        pairs = zip(self.messages, messages, strict=False)
        return next(
            (at for at, (one, other) in enumerate(pairs) if one is not other),
            min(len(self.messages), len(messages)),
        )


@dataclass
class Forest:
    """Segments by id, and indexes to find where a prompt attaches.

    Nothing recurses: a path is as long as its conversation.
    """

    session_id: str
    segments: dict[str, Segment] = field(default_factory=dict)
    children: dict[str | None, list[str]] = field(default_factory=dict)
    _ends: dict[str, _End] = field(default_factory=dict)
    _call_of: dict[str, str] = field(default_factory=dict)
    """Maps a completion segment to its call."""
    _answers: dict[str, str] = field(default_factory=dict)
    """Maps an answer's digest to its completion segment, the newest one if several are equal."""
    _aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    """Maps the digest of a chain, then of the same chain with a replayed form of an answer behind it, to the
    answer's own digest."""
    _paths: dict[int, dict[str, str]] = field(default_factory=dict)
    """Maps a path's length, then its hash, to the completion segment that it ends in."""
    _prompts: dict[tuple[str | None, str], str] = field(default_factory=dict)
    """Maps (parent, hash of ids) to a prompt segment."""
    _chains: list[_Chain] = field(default_factory=list)
    """Chains of the newest requests, newest first."""
    _shared: SharedPieces = field(default_factory=SharedPieces)
    _walked: tuple[str, TokenArray] = ("", TokenArray())
    """The last argument and result of `ids`."""

    @classmethod
    def load(cls, session_id: str, segments: Iterable[Segment], calls: Iterable[RecordedCall]) -> "Forest":
        """Build the forest of stored calls. Nothing can continue the segments of unfinished calls."""
        forest = cls(session_id)
        for segment in segments:
            forest._add(segment)
        for call in calls:
            if call.completion_segment is not None and call.answer_digest is not None:
                forest._index(call.id, forest.segments[call.completion_segment], call.answer_digest)
        return forest

    def chain(self, context: str, messages: Sequence[Message]) -> list[str]:
        """Return `chain_digests`, with our answer's digest for each form in which a client may replay it."""
        known, shared = self._known_chain(context, messages)
        out = known.digests[:shared]
        chain = out[-1] if out else context
        for message in messages[shared:]:
            parent = chain
            chain = chain_digests(chain, (message,))[0]
            # The digest goes on from the recorded answer, so the messages after a replayed form get the same
            # digests as after the exact one.
            forms = self._aliases.get(parent) if message.role == "assistant" else None
            if forms is not None and chain not in self._answers:
                chain = forms.get(chain_digests(parent, (replay_form(message),))[0], chain)
            out.append(chain)
        # Only the part before the first foreign answer may be remembered: that answer could still become one
        # of ours, if a sibling call commits it, and its digest would then change.
        foreign = (
            at
            for at in range(shared, len(out))
            if messages[at].role == "assistant" and out[at] not in self._answers
        )
        settled = next(foreign, len(out))
        others = [other for other in self._chains if other is not known or shared < len(other.messages)]
        self._chains = [
            _Chain(context, tuple(messages[:settled]), out[:settled]),
            *others[: _CONVERSATIONS - 1],
        ]
        return out

    def _known_chain(self, context: str, messages: Sequence[Message]) -> "tuple[_Chain, int]":
        """Return the earlier request with the longest common beginning, and its length."""
        shared_lengths = ((known, known.shared(context, messages)) for known in self._chains)
        return max(shared_lengths, key=lambda pair: pair[1], default=(_Chain(context, (), []), 0))

    def attach(self, chain: Sequence[str]) -> Attachment | None:
        """Return where a request (its `chain`) attaches: after the last of our answers in it; else None."""
        for index in range(len(chain) - 1, -1, -1):
            segment_id = self._answers.get(chain[index])
            if segment_id is not None:
                return Attachment(self._call_of[segment_id], segment_id, index + 1)
        return None

    def find_prefix(self, ids: Sequence[int]) -> Attachment | None:
        """Return the longest stored prompt + completion that is a token prefix of `ids`, if there is one.

        Takes time linear in `ids` and in the number of distinct lengths.
        """
        # One running hash over `ids`, looked up at each length that a stored path has. Empty completions are
        # not indexed (`_index`), since one would match wherever its prompt does.
        packed = memoryview(pack_ids(ids))
        digest = xxhash.xxh3_128()
        done = 0
        segment_id = None
        for length in sorted(length for length in self._paths if length <= len(ids)):
            digest.update(packed[4 * done : 4 * length])
            done = length
            segment_id = self._paths[length].get(digest.hexdigest(), segment_id)
        return None if segment_id is None else Attachment(self._call_of[segment_id], segment_id, 0)

    def add_prompt(self, ids: TokenIds, parent_id: str | None) -> tuple[Segment, bool]:
        """Return the prompt segment that adds `ids` after `parent_id`, and whether it is new.

        Equal prompts share one segment.
        """
        known = self._prompts.get((parent_id, hash_ids(ids)))
        if known is not None:
            return self.segments[known], False
        ids = ids if isinstance(ids, PieceTokens) else TokenArray(ids)
        copies = self._shared.copies(ids)
        segment = Segment(new_id(), self.session_id, "prompt", parent_id, ids, copies=copies)
        self._add(segment)
        return segment, True

    def stored(self, segment: Segment) -> None:
        """Note that a prompt is committed: later prompts may refer to its tokens. Any thread may call it."""
        self._shared.add(segment)

    def add_completion(
        self, call_id: str, prompt_id: str, ids: Sequence[int], logprobs: Sequence[float], answer_digest: str
    ) -> Segment:
        """Record the tokens that a call sampled. Later requests can continue them."""
        segment = Segment(new_id(), self.session_id, "completion", prompt_id, tuple(ids), tuple(logprobs))
        self.graft(call_id, segment, answer_digest)
        return segment

    def graft(self, call_id: str, segment: Segment, answer_digest: str) -> None:
        """Record a completion segment that was created before, e.g. one whose commit was awaited first."""
        self._add(segment)
        self._index(call_id, segment, answer_digest)

    def add_replays(self, parent_chain: str, answer: Message, answer_digest: str) -> None:
        """Also recognise an answer in its `replay_form`, with and without its reasoning."""
        form = replay_form(answer)
        forms = self._aliases.setdefault(parent_chain, {})
        for replayed in (form, replay_form(replace(form, reasoning=""))):
            forms[chain_digests(parent_chain, (replayed,))[0]] = answer_digest

    def path(self, segment_id: str) -> list[Segment]:
        """Return the segments from the root to the given one, in order."""
        out = []
        at = self.segments.get(segment_id)
        while at is not None:
            out.append(at)
            at = self.segments[at.parent_id] if at.parent_id is not None else None
        return out[::-1]

    def ids(self, segment_id: str) -> TokenArray:
        """Return all token ids from the root through a segment."""
        # Starts from the last result if that segment is an ancestor: usually only the last turn is new.
        (walked, known), behind, at = self._walked, list[Segment](), self.segments.get(segment_id)
        while at is not None and at.id != walked:
            behind.append(at)
            at = self.segments[at.parent_id] if at.parent_id is not None else None
        out = TokenArray(known if at is not None else ())
        for segment in reversed(behind):
            out.extend(as_array(segment.ids))
        self._walked = (segment_id, TokenArray(out))
        return out

    def length(self, segment_id: str) -> int:
        """Return the number of tokens that `ids` returns."""
        return self._ends[segment_id].length

    def call_of(self, segment_id: str) -> str | None:
        """Return the call that sampled a completion segment."""
        return self._call_of.get(segment_id)

    def leaves(self) -> list[Segment]:
        """Return the completions that nothing continues: one per branch, in order of recording."""
        return [
            segment
            for segment in self.segments.values()
            if segment.kind == "completion" and not self.children.get(segment.id)
        ]

    def _add(self, segment: Segment) -> None:
        if segment.parent_id is not None and segment.parent_id not in self.segments:
            raise TraceError(
                f"Session {self.session_id}: segment {segment.id} has an unknown parent {segment.parent_id}."
            )
        parent = _ROOT if segment.parent_id is None else self._ends[segment.parent_id]
        hasher = parent.hasher.copy()
        packed = pack_ids(segment.ids)
        hasher.update(packed)
        self._ends[segment.id] = _End(parent.length + len(segment.ids), hasher)
        self.segments[segment.id] = segment
        self.children.setdefault(segment.parent_id, []).append(segment.id)
        if segment.kind == "prompt":
            self._prompts[segment.parent_id, xxhash.xxh3_128_hexdigest(packed)] = segment.id

    def _index(self, call_id: str, segment: Segment, answer_digest: str) -> None:
        self._call_of[segment.id] = call_id
        # A call that ended before its first token: there is nothing to continue.
        if not len(segment.ids):
            return
        self._answers[answer_digest] = segment.id
        end = self._ends[segment.id]
        self._paths.setdefault(end.length, {})[end.hasher.hexdigest()] = segment.id


def replay_form(message: Message) -> Message:
    """Return the common form of all variants in which clients send an answer back.

    Surrounding whitespace is removed, and reasoning in front of the content is moved to `reasoning`.
    """
    content = message.content.strip()
    reasoning = message.reasoning.strip()
    if not reasoning and content.startswith(_THINK) and _THINK_END in content:
        reasoning, _, content = content.removeprefix(_THINK).partition(_THINK_END)
    return replace(message, content=content.strip(), reasoning=reasoning.strip())


_ROOT = _End(0, xxhash.xxh3_128())
