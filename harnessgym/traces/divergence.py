"""What a way of making rows costs: tokens trained under a context other than the one they were sampled in,
and tokens lost.

The forest's own rows are measured here, and beside them two published builders on the same calls. Both take
the calls of a rollout as a proxy of text recorded them, each with its prompt and its completion in tokens:

- `per_request`: a row per call.
- `prefix_merging`: a call joins the chain whose newest prompt is the longest prefix of its own. A chain
  becomes one row: the first prompt, then each completion as it was sampled, and between two of them what the
  later prompt has behind the earlier one from its first end of turn on. Where there is no such token, as
  after an equal prompt, the chain ends.

Source of both: NVIDIA-NeMo/ProRL-Agent-Server (Polar, arXiv 2605.24220), `trajectory/builder`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from harnessgym.errors import TraceError
from harnessgym.store.tables import calls, segments, sessions
from harnessgym.tokens import IdArray, hash_ids, widen_ids
from harnessgym.traces.trajectories import Trajectory


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One call: what the engine was given and what was sampled."""

    id: str
    prompt: IdArray
    """int32 [P]"""
    completion: IdArray
    """int32 [C]"""
    stopped: bool = True
    """Whether it ended by itself, with an end of turn."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Row tokens [start, end) are trained as the completion of a call."""

    call_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BuiltRow:
    """One row, however it was made."""

    ids: IdArray
    """int32 [T]"""
    parts: tuple[RowSpan, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Rows against the calls they are made of. Counts are of sampled tokens, but for `rows` and
    `row_tokens`.
    """

    rows: int
    row_tokens: int
    """Tokens of all rows: what a trainer has to compute."""
    sampled: int
    trained: int
    """Trained at least once."""
    wrong_context: int
    """Trained behind tokens other than the call's prompt."""
    repeated: int
    """Trained more than once, the first time not counted."""

    @property
    def lost(self) -> int:
        """Never trained."""
        return self.sampled - self.trained


def sampled_calls(conn: Connection, rollout_id: str, trajectory: Trajectory) -> list[SampledCall]:
    """The calls of a rollout that are not excluded from training, in order, their prompts rebuilt segment by
    segment.

    Raises `TraceError` if a rebuilt prompt is not what the upstream client put on the wire.
    """
    names = ("id", "prompt_len", "prompt_hash", "prompt_segment", "completion_segment", "finish_reason")
    query = select(*(calls.c[name] for name in names)).join(sessions, sessions.c.id == calls.c.session_id)
    query = query.where(
        calls.c.rollout_id == rollout_id, calls.c.completion_segment.is_not(None), calls.c.completion_len > 0
    )
    excluded = {item.call_id for item in trajectory.exclusions}
    parts = _segments(conn, rollout_id)
    out = []
    for row in conn.execute(query.order_by(sessions.c.created_at, sessions.c.id, calls.c.ordinal)):
        if row.id in excluded:
            continue
        prompt = _path(parts, row.prompt_segment)
        if (len(prompt), hash_ids(prompt.tolist())) != (row.prompt_len, row.prompt_hash):
            raise TraceError(
                f"Call {row.id}: its {len(prompt)} rebuilt prompt tokens are not what the engine was given."
            )
        out.append(SampledCall(row.id, prompt, parts[row.completion_segment][1], row.finish_reason == "stop"))
    return out


def forest(trajectory: Trajectory) -> list[BuiltRow]:
    """The rows that are trained here, in the form that `measure` takes."""
    return [
        BuiltRow(
            row.ids,
            tuple(RowSpan(turn.call_id, turn.start, turn.end) for turn in row.turns if row.mask[turn.start]),
        )
        for row in trajectory.rows
    ]


def per_request(sampled: Sequence[SampledCall]) -> list[BuiltRow]:
    """A row per call."""
    return [_joined([call.prompt, call.completion], [(call, 1)]) for call in sampled]


def prefix_merging(sampled: Sequence[SampledCall]) -> list[BuiltRow]:
    """A row per chain of prompts."""
    end = next((int(call.completion[-1]) for call in sampled if call.stopped and len(call.completion)), None)
    chains: list[list[SampledCall]] = []
    for call in sampled:
        longer = [chain for chain in chains if _is_prefix(chain[-1].prompt, call.prompt)]
        best = max(longer, key=lambda chain: len(chain[-1].prompt), default=None)
        if best is None:
            chains.append([call])
        else:
            best.append(call)
    return [_merged(chain, end) for chain in chains]


def measure(rows: Sequence[BuiltRow], sampled: Sequence[SampledCall]) -> Divergence:
    """Compare rows with the calls they were made of. Raises `TraceError` if a row trains what its call did
    not sample.
    """
    by_id = {call.id: call for call in sampled}
    wrong = 0
    trained = set[str]()
    repeated = 0
    for row in rows:
        for part in row.parts:
            call = by_id[part.call_id]
            if not np.array_equal(row.ids[part.start : part.end], call.completion):
                raise TraceError(
                    f"Row tokens [{part.start}, {part.end}) are not what call {call.id} sampled."
                )
            wrong += 0 if np.array_equal(row.ids[: part.start], call.prompt) else len(call.completion)
            repeated += len(call.completion) if call.id in trained else 0
            trained.add(call.id)
    return Divergence(
        rows=len(rows),
        row_tokens=sum(len(row.ids) for row in rows),
        sampled=sum(len(call.completion) for call in sampled),
        trained=sum(len(by_id[name].completion) for name in trained),
        wrong_context=wrong,
        repeated=repeated,
    )


def _merged(chain: Sequence[SampledCall], end: int | None) -> BuiltRow:
    pieces: list[IdArray] = [chain[0].prompt, chain[0].completion]
    placed = [(chain[0], 1)]
    for before, call in itertools.pairwise(chain):
        tail = _between(before, call, end)
        if tail is None:
            break
        pieces += [tail, call.completion]
        placed.append((call, len(pieces) - 1))
    return _joined(pieces, placed)


def _between(before: SampledCall, call: SampledCall, end: int | None) -> IdArray | None:
    """What stands between two completions; None if the later prompt has no end of turn behind the earlier
    one.
    """
    added = call.prompt[len(before.prompt) :]
    (ends,) = np.nonzero(added == end) if end is not None else (np.empty(0, np.int64),)
    if not len(ends):
        return None
    closed = len(before.completion) > 0 and int(before.completion[-1]) == end
    return added[int(ends[0]) + (1 if closed else 0) :]


def _joined(pieces: Sequence[IdArray], placed: Sequence[tuple[SampledCall, int]]) -> BuiltRow:
    """A row of pieces, of which the numbered ones are completions."""
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])
    parts = tuple(RowSpan(call.id, int(starts[index]), int(starts[index + 1])) for call, index in placed)
    return BuiltRow(np.concatenate(pieces), parts)


def _is_prefix(short: IdArray, long: IdArray) -> bool:
    return len(short) <= len(long) and np.array_equal(short, long[: len(short)])


def _segments(conn: Connection, rollout_id: str) -> dict[str, tuple[str | None, IdArray]]:
    """Parent and ids by segment id."""
    query = select(segments.c.id, segments.c.parent_id, segments.c.length, segments.c.ids)
    query = query.join(sessions, sessions.c.id == segments.c.session_id).where(
        sessions.c.rollout_id == rollout_id
    )
    return {row.id: (row.parent_id, widen_ids(row.ids, row.length, row.id)) for row in conn.execute(query)}


def _path(parts: dict[str, tuple[str | None, IdArray]], segment_id: str) -> IdArray:
    pieces: list[IdArray] = []
    at: str | None = segment_id
    while at is not None:
        at, ids = parts[at]
        pieces.append(ids)
    return np.concatenate(pieces[::-1])
