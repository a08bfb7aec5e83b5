"""Verifies one session's calls and tokens from the stored rows alone.

Prompts are rebuilt by following segments from their roots, with one running hash per segment. They are
compared with the lengths and hashes that the upstream client stored. The code that recorded the tokens
(`forest`) is not used, so the check is independent of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from sqlalchemy import Connection

from harnessgym.store import audit
from harnessgym.store.audit import AuditedCall, AuditedSegment, AuditedSession
from harnessgym.traces.verification.findings import Tally

_WITH_TOKENS = ("committed", "delivered", "acknowledged", "undelivered")
_Hasher = xxhash.xxh3_128


@dataclass(frozen=True, slots=True)
class _Path:
    """All tokens from a root through a segment."""

    length: int
    hasher: _Hasher


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """A session's rows, and the tally for findings about them."""

    session: AuditedSession
    versions: Mapping[str, frozenset[int]]
    """Published versions by policy."""
    calls: Sequence[AuditedCall]
    """Calls in order of their ordinals."""
    segments: dict[str, AuditedSegment]
    """Segments by id. Their `ids` are widened to four bytes each, the form that is hashed."""
    paths: dict[str, _Path]
    tally: Tally

    @classmethod
    def load(
        cls, conn: Connection, session: AuditedSession, versions: Mapping[str, frozenset[int]], tally: Tally
    ) -> "SessionCheck":
        """Read a session's rows and hash its paths."""
        by_id = _with_copies(audit.segments_of(conn, session.id))
        return cls(session, versions, audit.calls_of(conn, session.id), by_id, _hash_paths(by_id), tally)

    def run(self) -> None:
        """Run all checks of the session."""
        self.tally.count("sessions")
        self.tally.count("calls", len(self.calls))
        self._check_segments()
        self._check_ordinals()
        by_id = {call.id: call for call in self.calls}
        for call in self.calls:
            where = f"call {call.id}"
            if call.rollout_id != self.session.rollout_id:
                self.tally.find(
                    "reference", where, f"belongs to rollout {call.rollout_id}, its session to another."
                )
            self._check_prompt(call, where)
            self._check_completion(call, where)
            self._check_parent(call, by_id, where)

    def _check_segments(self) -> None:
        owners = Counter(call.completion_segment for call in self.calls)
        owned = set(owners) | {call.prompt_segment for call in self.calls}
        for row in self.segments.values():
            where = f"segment {row.id}"
            ids = row.ids
            self.tally.count("segments")
            self.tally.count("tokens", row.length)
            if len(ids) != 4 * row.length:
                self.tally.find("segment_blob", where, f"{len(ids)} bytes of ids for {row.length} tokens.")
            if row.logprobs is not None and len(row.logprobs) != 4 * row.length:
                self.tally.find(
                    "segment_blob",
                    where,
                    f"{len(row.logprobs)} bytes of logprobs for {row.length} tokens.",
                )
            if xxhash.xxh3_128_hexdigest(ids) != row.hash:
                self.tally.find("segment_hash", where, "its ids are not those that were stored.")
            if row.id not in self.paths:
                self.tally.find(
                    "segment_tree", where, f"its parent {row.parent_id} leads to no root in this session."
                )
            if row.id not in owned:
                self.tally.find("segment_orphan", where, f"no call owns this {row.kind}: a call is missing.")
            if owners[row.id] > 1:
                self.tally.find(
                    "completion_parent", where, f"{owners[row.id]} calls claim it as their completion."
                )

    def _check_ordinals(self) -> None:
        where = f"session {self.session.id}"
        ordinals = [call.ordinal for call in self.calls]
        if ordinals != list(range(len(ordinals))):
            gaps = [
                f"{before}..{after}" for before, after in pairwise([-1, *ordinals]) if after != before + 1
            ]
            self.tally.find(
                "ordinal_gap", where, f"call ordinals jump at {', '.join(gaps)}: a call is missing."
            )
        sealed = self.session.calls_at_seal
        if sealed is not None and sealed != len(ordinals):
            self.tally.find("seal_count", where, f"was sealed with {sealed} calls and has {len(ordinals)}.")

    def _check_prompt(self, call: AuditedCall, where: str) -> None:
        segment = self.segments.get(call.prompt_segment)
        if segment is None or segment.kind != "prompt":
            self.tally.find(
                "reference", where, f"its prompt {call.prompt_segment} is no prompt of this session."
            )
        elif (path := self.paths.get(segment.id)) is not None:
            if path.length != call.prompt_len:
                self.tally.find(
                    "prompt_length",
                    where,
                    f"{call.prompt_len} tokens were on the wire, {path.length} are stored.",
                )
            if path.hasher.hexdigest() != call.prompt_hash:
                self.tally.find(
                    "prompt_hash",
                    where,
                    "the prompt rebuilt from the store is not the one that was on the wire.",
                )

    def _check_completion(self, call: AuditedCall, where: str) -> None:
        if call.completion_segment is None:
            self.tally.count("unfinished", call.status == "intent")
            if call.completion_len is not None or (call.status in _WITH_TOKENS and call.kind != "count"):
                self.tally.find("completion_missing", where, f"is {call.status} and has no completion.")
            return
        segment = self.segments.get(call.completion_segment)
        if segment is None or segment.kind != "completion":
            self.tally.find(
                "reference",
                where,
                f"its completion {call.completion_segment} is no completion of this session.",
            )
            return
        if segment.parent_id != call.prompt_segment:
            self.tally.find("completion_parent", where, "its completion does not follow its prompt.")
        length = len(segment.ids) // 4
        if length != call.completion_len:
            self.tally.find(
                "completion_length",
                where,
                f"{call.completion_len} tokens were sampled, {length} are stored.",
            )
        spans = self._check_spans(call, length, where, text_only=segment.logprobs is None)
        digest = _Hasher(segment.ids)
        digest.update(segment.logprobs or b"")
        digest.update(np.asarray(spans, dtype="<i4").tobytes())
        if digest.hexdigest() != call.completion_hash:
            self.tally.find(
                "completion_hash", where, "ids, logprobs and version spans are not those that were sampled."
            )
        self._check_logprobs(segment, where)
        self._check_usage(call, where)

    def _check_spans(self, call: AuditedCall, length: int, where: str, *, text_only: bool) -> list[list[int]]:
        """Check the version spans, and return them as they are hashed.

        Answers of outside models have neither logprobs nor versions.
        """
        spans = stored_spans(call.version_spans)
        reached = 0
        published = self.versions.get(call.policy_id or self.session.policy_id, frozenset())
        if spans is None:
            self.tally.find("span_coverage", where, "version spans are not a list of [start, end, version].")
            return []
        for start, end, version in spans:
            if start != reached or end <= start:
                self.tally.find(
                    "span_coverage",
                    where,
                    f"version span [{start}, {end}) does not continue at token {reached}.",
                )
            if version not in published:
                self.tally.find(
                    "span_version",
                    where,
                    f"tokens [{start}, {end}) name version {version}, which was never published.",
                )
            reached = end
        if reached != (0 if text_only else length):
            self.tally.find("span_coverage", where, f"version spans cover {reached} of {length} tokens.")
        return spans

    def _check_logprobs(self, segment: AuditedSegment, where: str) -> None:
        blob = segment.logprobs or b""
        # A damaged blob may not have a whole number of floats. `segment_blob` reports that; check the rest.
        logprobs = np.frombuffer(blob[: len(blob) // 4 * 4], dtype="<f4")
        wrong = np.flatnonzero(~(np.isfinite(logprobs) & (logprobs <= 0.0)))
        if len(wrong):
            self.tally.find(
                "logprob",
                where,
                f"token {wrong[0]} has logprob {logprobs[wrong[0]]} ({len(wrong)} such tokens).",
            )

    def _check_usage(self, call: AuditedCall, where: str) -> None:
        usage = call.usage or {}
        for name, counted in (
            ("prompt_tokens", call.prompt_len),
            ("completion_tokens", call.completion_len),
        ):
            if usage.get(name, counted) != counted:
                self.tally.find(
                    "usage", where, f"the engine counted {usage[name]} {name}, the record has {counted}."
                )

    def _check_parent(self, call: AuditedCall, by_id: dict[str, AuditedCall], where: str) -> None:
        parent = by_id.get(call.parent_call_id or "")
        if call.parent_call_id is not None and parent is None:
            self.tally.find(
                "reference", where, f"its parent call {call.parent_call_id} is not in this session."
            )
        if parent is not None and parent.policy_id != call.policy_id:
            self.tally.find(
                "parent_policy", where, f"continues call {parent.id}, which another policy answered."
            )
        if parent is not None and parent.ordinal >= call.ordinal:
            self.tally.find(
                "ordinal_order", where, f"is call {call.ordinal} and continues call {parent.ordinal}."
            )
        if call.parent_evidence == "token_prefix" and not self._continues(parent, call):
            self.tally.find(
                "parent_prefix",
                where,
                f"does not continue the tokens of its parent {call.parent_call_id}.",
            )

    def _continues(self, parent: AuditedCall | None, call: AuditedCall) -> bool:
        """Return whether the call's prompt begins with the parent's prompt and completion."""
        if (
            parent is None
            or parent.completion_segment not in self.paths
            or call.prompt_segment not in self.paths
        ):
            return False
        # Usually the segments are linked, and the tokens need not be compared. A prompt that is stored as a
        # root may still begin with the parent's tokens.
        before = self.segments[call.prompt_segment].parent_id
        if before is not None:
            return bool(before == parent.completion_segment)
        return self._tokens(call.prompt_segment).startswith(self._tokens(parent.completion_segment))

    def _tokens(self, segment_id: str) -> bytes:
        """Return the packed ids of a path."""
        parts = []
        at: str | None = segment_id
        while at is not None:
            parts.append(self.segments[at].ids)
            at = self.segments[at].parent_id
        return b"".join(reversed(parts))


def stored_spans(value: object) -> list[list[int]] | None:
    """Return a call's stored version spans [start, end, version]; None if they have another form."""
    if not isinstance(value, list):
        return None
    shaped = all(isinstance(span, list) and len(span) == 3 and all(map(_is_number, span)) for span in value)
    return value if shaped else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 31


def _whole_ids(blob: bytes, length: int) -> bytes:
    """Widen stored token ids to four bytes each; returns a blob as it is if it does not hold `length` ids."""
    width, rest = divmod(len(blob), length) if length else (0, 0)
    if rest or not 2 <= width < 4:
        return blob
    whole = bytearray(4 * length)
    for place in range(width):
        whole[place::4] = blob[place::width]
    return bytes(whole)


def _with_copies(rows: Sequence[AuditedSegment]) -> dict[str, AuditedSegment]:
    """Segments by id with all of their ids, four bytes each.

    One that repeats ids of a segment that is missing, or of itself, has only its own: their number is wrong.
    """
    whole = dict[str, AuditedSegment]()
    waiting = list(rows)
    while waiting:
        left = list[AuditedSegment]()
        for row in waiting:
            copies = row.copies or ()
            own = _whole_ids(row.ids, row.length - sum(number for *_, number in copies))
            if all(source in whole for _, source, _, _ in copies):
                whole[row.id] = replace(row, ids=_filled(own, copies, whole))
            else:
                left.append(row)
        if len(left) == len(waiting):
            whole |= {row.id: row for row in left}
            break
        waiting = left
    return whole


def _filled(own: bytes, copies: Sequence[Sequence[Any]], whole: Mapping[str, AuditedSegment]) -> bytes:
    """Own ids, with those of other segments put in at their places."""
    out = bytearray(own)
    for place, source, start, number in copies:
        out[4 * place : 4 * place] = whole[source].ids[4 * start : 4 * (start + number)]
    return bytes(out)


def _hash_paths(rows: dict[str, AuditedSegment]) -> dict[str, _Path]:
    """Return length and hash of each segment's path. Leaves out segments without a path to a root."""
    children: dict[str | None, list[AuditedSegment]] = {}
    for row in rows.values():
        children.setdefault(row.parent_id, []).append(row)
    paths: dict[str, _Path] = {}
    waiting = list(children.get(None, ()))
    while waiting:
        row = waiting.pop()
        parent = paths.get(row.parent_id or "")
        hasher = _Hasher() if parent is None else parent.hasher.copy()
        hasher.update(row.ids)
        paths[row.id] = _Path((0 if parent is None else parent.length) + len(row.ids) // 4, hasher)
        waiting.extend(children.get(row.id, ()))
    return paths
