"""Training rows: a recorded rollout in the form that trainers use.

A row is one branch of the forest, flattened: token ids and a mask ("did the policy sample this token, and is
it trained in this row?"). There is no prompt/completion split. If branches share a sampled segment, exactly
one row trains it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import Connection

from harnessgym.errors import TraceError
from harnessgym.routed_experts import RoutedExperts, RowExperts
from harnessgym.store import expert_rows, rewards, rollout_tokens
from harnessgym.store.rollout_tokens import CallTokens, SegmentTokens
from harnessgym.tokens import (
    FloatArray,
    IdArray,
    VersionSpan,
    hash_ids,
    versions_of,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Row tokens [start, end) were sampled in one call."""

    start: int
    end: int
    call_id: str
    agent_id: str
    state_key: str = ""
    """Digest of the tokens between the previous turn and this one, or of the whole prompt for the first turn.
    It identifies the last observation, not the history before it."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Rewards of the call by channel."""
    parent_agent_id: str = ""
    """The agent that started this turn's agent; "" for a main agent."""
    place: int = 0
    """Index of the call in the order in which the rollout's calls began."""


@dataclass(frozen=True, slots=True)
class Row:
    """One branch of one rollout. All arrays have the row's length T."""

    rollout_id: str
    group_id: str
    ids: IdArray
    """int32 [T]"""
    mask: IdArray
    """int32 [T], 1 where the token was sampled and is trained in this row"""
    logprobs: FloatArray
    """float32 [T], behaviour policy; 0.0 where mask is 0"""
    versions: IdArray
    """int32 [T], the policy version that sampled the token; -1 where mask is 0"""
    turns: tuple[Turn, ...] = ()
    policy_id: str = ""
    """The policy that sampled the tokens with mask 1. Tokens of other policies are ordinary context."""
    experts: RowExperts | None = None
    """The experts that computed its tokens, as the engine reported them. None if it reported none, or if they
    were not read."""

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise TraceError(
                f"Rollout {self.rollout_id}: ids, mask, logprobs and versions differ in length: "
                f"{sorted(lengths)}."
            )
        if self.logprobs[self.mask == 0].any():
            raise TraceError(f"Rollout {self.rollout_id}: a token that was not sampled carries a logprob.")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Completion tokens [start, end) of a call that no row trains, and why."""

    call_id: str
    start: int
    end: int
    reason: str
    """side_call, aborted, error, undelivered, truncated_sampling or text_only."""
    policy_id: str = field(default="", compare=False)
    """The policy that was called."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Rewards of a rollout as a whole and of its agents."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of the rollout by channel."""
    agents: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Rewards by agent, then by channel."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All rows of a rollout, and the account of its sampled tokens."""

    rows: tuple[Row, ...]
    exclusions: tuple[Exclusion, ...]
    sampled: int
    """Tokens that were sampled in all calls of the rollout."""
    trained: int
    """Tokens with mask 1 over all rows."""
    incomplete: str | None = None
    """Why the record may lack something that the policy did; None if it is complete."""
    credit: Credit = Credit()

    def __post_init__(self) -> None:
        excluded = sum(item.end - item.start for item in self.exclusions)
        if self.trained + excluded != self.sampled:
            raise TraceError(
                f"{self.trained} trained + {excluded} excluded tokens are not the {self.sampled} sampled "
                "ones."
            )

    def of_policy(self, policy_id: str) -> "Trajectory":
        """Return the part that one policy sampled."""
        rows = tuple(row for row in self.rows if row.policy_id == policy_id)
        exclusions = tuple(item for item in self.exclusions if item.policy_id == policy_id)
        trained = sum(int(row.mask.sum()) for row in rows)
        sampled = trained + sum(item.end - item.start for item in exclusions)
        return Trajectory(rows, exclusions, sampled, trained, self.incomplete, self.credit)


def rows_of(conn: Connection, rollout_id: str, *, group_id: str, with_experts: bool = False) -> Trajectory:
    """Return each branch of a rollout's forests as a row. Each sampled token is trained once or excluded.

    A row ends with the last token that it trains; a branch that would train nothing gives no row. Rows are in
    order of the call that they end in, and a shared segment is trained in the first of its rows.
    `with_experts` also reads routed experts, which are much larger than tokens. Raises `TraceError` if stored
    tokens contradict each other.
    """
    calls = rollout_tokens.calls_of(conn, rollout_id)
    nodes = rollout_tokens.segments_of(conn, rollout_id)
    continued = {node.parent_id for node in nodes.values()}
    owners: dict[str, CallTokens] = {}
    trained: dict[str, CallTokens] = {}
    exclusions = []
    sampled = 0
    for call in calls:
        node = _completion(call, nodes)
        if node is None or not len(node.ids):
            continue
        if node.id in owners:
            raise TraceError(
                f"Calls {owners[node.id].id} and {call.id} claim the same completion segment {node.id}."
            )
        sampled, owners[node.id] = sampled + len(node.ids), call
        reason = _exclusion_reason(call, node, continued)
        if reason is None:
            trained[node.id] = call
        else:
            exclusions.append(Exclusion(call.id, 0, len(node.ids), reason, call.policy_id))
    by_unit = rewards.by_unit(conn, rollout_id, ("rollout", "agent", "turn"))
    experts = expert_rows.of_rollout(conn, rollout_id) if with_experts else {}
    rows = _Rows(
        rollout_id, group_id, nodes, owners, trained, by_unit["turn"], _call_order(calls), experts
    ).build()
    in_rows = sum(int(row.mask.sum()) for row in rows)
    credit = Credit(by_unit["rollout"].get(rollout_id, {}), by_unit["agent"])
    return Trajectory(tuple(rows), tuple(exclusions), sampled, in_rows, _incomplete(calls), credit)


@dataclass
class _Rows:
    """Flattens the paths that end in trained segments."""

    rollout_id: str
    group_id: str
    nodes: dict[str, SegmentTokens]
    owners: dict[str, CallTokens]
    """Maps a completion segment to the call that sampled it."""
    trained: dict[str, CallTokens]
    """The part of `owners` that is trained, in order of recording."""
    rewards: Mapping[str, dict[str, float]]
    """Rewards by call, then by channel."""
    places: Mapping[str, int]
    """`Turn.place` by call."""
    experts: Mapping[str, RoutedExperts]
    """What engines reported, by call."""
    _used: set[str] = field(default_factory=set)

    def build(self) -> list[Row]:
        """Build a row per trained segment that no other trained segment follows."""
        inner = self._ancestors(self.trained)
        return [self._row(self._path(leaf)) for leaf in self.trained if leaf not in inner]

    def _ancestors(self, leaves: Iterable[str]) -> set[str]:
        """Return all proper ancestors of the leaves. Visits every segment once."""
        seen: set[str] = set()
        for leaf in leaves:
            at = self._node(leaf).parent_id
            while at is not None and at not in seen:
                seen.add(at)
                at = self._node(at).parent_id
        return seen

    def _path(self, leaf: str) -> list[SegmentTokens]:
        path: list[SegmentTokens] = []
        at: str | None = leaf
        while at is not None:
            path.append(self._node(at))
            at = path[-1].parent_id
            if len(path) > len(self.nodes):
                raise TraceError(f"Rollout {self.rollout_id}: the segments before {leaf} form a cycle.")
        return path[::-1]

    def _node(self, segment_id: str) -> SegmentTokens:
        try:
            return self.nodes[segment_id]
        except KeyError:
            raise TraceError(
                f"Rollout {self.rollout_id}: segment {segment_id} is referred to, but not stored."
            ) from None

    def _row(self, path: Sequence[SegmentTokens]) -> Row:
        ids = np.concatenate([node.ids for node in path])
        mask = np.zeros(len(ids), np.int32)
        logprobs = np.zeros(len(ids), np.float32)
        versions = np.full(len(ids), -1, np.int32)
        turns = list[Turn]()
        own_calls = list[str]()
        start = 0
        policy_id = self.owners[path[-1].id].policy_id
        for node in path:
            end = start + len(node.ids)
            call = self.owners.get(node.id)
            if call is not None:
                state = hash_ids(ids[turns[-1].end if turns else 0 : start].tolist())
                own_rewards = self.rewards.get(call.id, {})
                parent = call.parent_agent_id or ""
                place = self.places[call.id]
                turns.append(
                    Turn(start, end, call.id, call.agent_id or "", state, own_rewards, parent, place)
                )
            # Only the first row with a shared segment trains it; in later rows it is context. So is anything
            # that another policy sampled: its logprobs are not those of the policy trained here.
            own = call is not None and call.policy_id == policy_id
            if call is not None and own:
                own_calls.append(call.id)
            if call is not None and own and node.id in self.trained and node.id not in self._used:
                assert node.logprobs is not None
                self._used.add(node.id)
                mask[start:end] = 1
                logprobs[start:end] = node.logprobs
                versions[start:end] = versions_of(_spans(call), len(node.ids))
            start = end
        experts = self._experts(own_calls, len(ids))
        return Row(
            self.rollout_id, self.group_id, ids, mask, logprobs, versions, tuple(turns), policy_id, experts
        )

    def _experts(self, call_ids: Sequence[str], length: int) -> RowExperts | None:
        """Return the experts of a row of `length` tokens that these calls added, in order."""
        parts = [self.experts[call_id] for call_id in call_ids if call_id in self.experts]
        try:
            return RowExperts.joined(parts, length) if parts else None
        except TraceError as error:
            raise TraceError(f"Rollout {self.rollout_id}, calls {', '.join(call_ids)}: {error}") from error


def _call_order(calls: Sequence[CallTokens]) -> dict[str, int]:
    """Return each call's index in the order in which a rollout's calls began.

    `calls` is ordered by session and ordinal. Ids sort by the clock of the proxy that made them, which may
    have been set back. So a call counts as begun no earlier than the previous one of its session: ordinals do
    not depend on a clock.
    """
    latest: dict[str, str] = {}
    began = []
    for number, call in enumerate(calls):
        session = call.session_id
        latest[session] = max(call.id, latest.get(session, ""))
        began.append((latest[session], number, call.id))
    return {call_id: place for place, (_, _, call_id) in enumerate(sorted(began))}


def _completion(call: CallTokens, nodes: dict[str, SegmentTokens]) -> SegmentTokens | None:
    """Return the segment that a call sampled; None if it has none."""
    if call.completion_segment is None:
        return None
    node = nodes.get(call.completion_segment)
    if node is None or len(node.ids) != call.completion_len:
        raise TraceError(
            f"Call {call.id}: its {call.completion_len} completion tokens are not stored, or not all of them."
        )
    if node.logprobs is not None and len(node.logprobs) != len(node.ids):
        raise TraceError(
            f"Call {call.id}: {len(node.logprobs)} logprobs for {len(node.ids)} completion tokens."
        )
    return node


def _exclusion_reason(call: CallTokens, node: SegmentTokens, continued: set[str | None]) -> str | None:
    """Return why a call's tokens are not trained; None if they are."""
    if call.kind in ("side", "count"):
        return "side_call"
    if call.status in ("aborted", "error"):
        return str(call.status)
    # An answer that another call continues did reach the harness, whatever the delivery status says.
    if call.status == "undelivered" and node.id not in continued:
        return "undelivered"
    if node.logprobs is None:
        return "text_only"
    if _truncates(call.sampling):
        return "truncated_sampling"
    return None


def _truncates(sampling: Mapping[str, Any]) -> bool:
    """Return whether sampling was restricted to some of the tokens.

    The policy gradient would need the set of tokens that could be sampled, which is not stored.
    """
    truncated = sampling.get("top_p", 1.0) < 1.0 or sampling.get("top_k", 0) > 0
    return bool(truncated or sampling.get("temperature", 1.0) <= 0.0)


def _spans(call: CallTokens) -> list[VersionSpan]:
    return [VersionSpan(*span) for span in call.version_spans or ()]


def _incomplete(calls: Sequence[CallTokens]) -> str | None:
    for call in calls:
        if call.status == "intent":
            return f"call {call.id} began and never finished"
        if call.status == "error" and call.kind == "policy":
            return f"call {call.id} failed"
    return None
