"""The forest of one session: every token its calls were given or sampled, each stored once.

Two calls join only if prompt + completion of the first is a token prefix of the second's prompt; message digests merely say
where to look. The proxy grows a forest call by call, reconstruction builds the same one from the store.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import xxhash

from harnessgym.errors import TraceError
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.tables import new_id
from harnessgym.tokens import hash_ids, pack_ids


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a new request continues: after `call_id`'s completion, with the request's messages from `matched` on being new."""

    call_id: str
    segment_id: str
    matched: int
    """How many leading messages (the last being the call's answer) are covered."""


@dataclass
class Forest:
    """Segments by id, and indexes to find where a prompt attaches. Paths are as long as a conversation; nothing recurses."""

    session_id: str
    segments: dict[str, Segment] = field(default_factory=dict)
    children: dict[str | None, list[str]] = field(default_factory=dict)
    _call_of: dict[str, str] = field(default_factory=dict)
    """Completion segment to its call."""
    _answers: dict[str, str] = field(default_factory=dict)
    """Answer digest to completion segment, the newest where several are equal."""
    _paths: dict[tuple[int, str], str] = field(default_factory=dict)
    """(length, hash) of a whole path to the completion segment it ends in."""
    _prompts: dict[tuple[str | None, str], str] = field(default_factory=dict)
    """(parent, hash of ids) to prompt segment."""

    @classmethod
    def load(cls, session_id: str, segments: Iterable[Segment], calls: Iterable[RecordedCall]) -> "Forest":
        """The forest of stored calls. Segments of unfinished calls take no children."""
        forest = cls(session_id)
        for segment in segments:
            forest._add(segment)
        for call in calls:
            if call.completion_segment is not None and call.answer_digest is not None:
                forest._index(call.id, forest.segments[call.completion_segment], call.answer_digest)
        return forest

    def attach(self, chain: Sequence[str]) -> Attachment | None:
        """The longest leading part of a request (its `chain_digests`) that ends in an answer of ours."""
        for index in range(len(chain) - 1, -1, -1):
            segment_id = self._answers.get(chain[index])
            if segment_id is not None:
                return Attachment(self._call_of[segment_id], segment_id, index + 1)
        return None

    def find_prefix(self, ids: Sequence[int]) -> Attachment | None:
        """The longest stored prompt + completion that is a token prefix of `ids`. Linear in `ids` and in distinct lengths."""
        lengths = sorted({length for length, _ in self._paths if length <= len(ids)})
        packed, digest, done, found = pack_ids(ids), xxhash.xxh3_128(), 0, None
        for length in lengths:
            digest.update(packed[4 * done : 4 * length])
            done = length
            found = self._paths.get((length, digest.hexdigest()), found)
        return None if found is None else Attachment(self._call_of[found], found, 0)

    def add_prompt(self, ids: Sequence[int], parent_id: str | None) -> tuple[Segment, bool]:
        """The prompt segment that adds `ids` behind `parent_id`, and whether it is new: equal prompts share one."""
        known = self._prompts.get((parent_id, hash_ids(ids)))
        if known is not None:
            return self.segments[known], False
        segment = Segment(new_id(), self.session_id, "prompt", parent_id, tuple(ids))
        self._add(segment)
        return segment, True

    def add_completion(
        self, call_id: str, prompt_id: str, ids: Sequence[int], logprobs: Sequence[float], answer_digest: str
    ) -> Segment:
        """Record what a call sampled; later requests can continue it."""
        segment = Segment(new_id(), self.session_id, "completion", prompt_id, tuple(ids), tuple(logprobs))
        self._add(segment)
        self._index(call_id, segment, answer_digest)
        return segment

    def path(self, segment_id: str) -> list[Segment]:
        """Segments from the root to one, in order."""
        out, at = [], self.segments.get(segment_id)
        while at is not None:
            out.append(at)
            at = self.segments[at.parent_id] if at.parent_id is not None else None
        return out[::-1]

    def ids(self, segment_id: str) -> list[int]:
        """All token ids from the root through a segment."""
        return [token for segment in self.path(segment_id) for token in segment.ids]

    def call_of(self, segment_id: str) -> str | None:
        """The call that sampled a completion segment."""
        return self._call_of.get(segment_id)

    def leaves(self) -> list[Segment]:
        """Completions that nothing continues: one per branch, in order of recording."""
        return [segment for segment in self.segments.values() if segment.kind == "completion" and not self.children.get(segment.id)]

    def _add(self, segment: Segment) -> None:
        if segment.parent_id is not None and segment.parent_id not in self.segments:
            raise TraceError(f"Session {self.session_id}: segment {segment.id} has an unknown parent {segment.parent_id}.")
        self.segments[segment.id] = segment
        self.children.setdefault(segment.parent_id, []).append(segment.id)
        if segment.kind == "prompt":
            self._prompts[segment.parent_id, hash_ids(segment.ids)] = segment.id

    def _index(self, call_id: str, segment: Segment, answer_digest: str) -> None:
        self._call_of[segment.id] = call_id
        self._answers[answer_digest] = segment.id
        whole = self.ids(segment.id)
        self._paths[len(whole), hash_ids(whole)] = segment.id
