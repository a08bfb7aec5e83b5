"""Measures ways of building training rows: tokens trained in a context they were not sampled in, tokens lost.

It measures the forest's own rows and, on the same calls, two published builders. Both take the calls of a
rollout as a text proxy records them, each with its prompt and completion as tokens:

- `per_request`: a row per call.
- `prefix_merging`: a call joins the chain whose newest prompt is the longest prefix of its own. A chain
  becomes one row: the first prompt, then each completion as it was sampled. Between two completions stands
  the part of the later prompt that follows the earlier prompt, from its first end of turn on. If that part
  has no end of turn, as after an equal prompt, the chain ends.

Source of both: NVIDIA-NeMo/ProRL-Agent-Server (Polar, arXiv 2605.24220), `trajectory/builder`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection

from harnessgym.errors import TraceError
from harnessgym.store import rollout_tokens
from harnessgym.store.rollout_tokens import SegmentTokens
from harnessgym.tokens import IdArray, hash_ids
from harnessgym.traces.trajectories import Trajectory


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One call: the prompt that the engine got and the tokens that were sampled."""

    id: str
    prompt: IdArray
    """int32 [P]"""
    completion: IdArray
    """int32 [C]"""
    stopped: bool = True
    """Whether the completion ended with an end of turn."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Row tokens [start, end) are trained as the completion of a call."""

    call_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BuiltRow:
    """One row, from any builder."""

    ids: IdArray
    """int32 [T]"""
    parts: tuple[RowSpan, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A comparison of rows with their calls. All counts but `rows` and `row_tokens` are of sampled tokens."""

    rows: int
    row_tokens: int
    """Tokens of all rows, which a trainer has to compute."""
    sampled: int
    trained: int
    """Trained at least once."""
    wrong_context: int
    """Trained after tokens other than the call's prompt."""
    repeated: int
    """Trained again after the first time."""

    @property
    def lost(self) -> int:
        """Never trained."""
        return self.sampled - self.trained


def sampled_calls(conn: Connection, rollout_id: str, trajectory: Trajectory) -> list[SampledCall]:
    """Return the calls of a rollout that are not excluded from training, in order.

    Prompts are rebuilt from their segments. Raises `TraceError` if a rebuilt prompt is not what the upstream
    client put on the wire.
    """
    excluded = {item.call_id for item in trajectory.exclusions}
    segments = rollout_tokens.segments_of(conn, rollout_id)
    out = []
    for call in rollout_tokens.calls_of(conn, rollout_id):
        if call.completion_segment is None or not call.completion_len or call.id in excluded:
            continue
        prompt = _path(segments, call.prompt_segment)
        if (len(prompt), hash_ids(prompt.tolist())) != (call.prompt_len, call.prompt_hash):
            raise TraceError(
                f"Call {call.id}: its {len(prompt)} rebuilt prompt tokens are not what the engine was given."
            )
        completion = segments[call.completion_segment].ids
        out.append(SampledCall(call.id, prompt, completion, call.finish_reason == "stop"))
    return out


def forest(trajectory: Trajectory) -> list[BuiltRow]:
    """Return a trajectory's own rows in the form that `measure` takes."""
    return [
        BuiltRow(
            row.ids,
            tuple(RowSpan(turn.call_id, turn.start, turn.end) for turn in row.turns if row.mask[turn.start]),
        )
        for row in trajectory.rows
    ]


def per_request(sampled: Sequence[SampledCall]) -> list[BuiltRow]:
    """Build a row per call."""
    return [_joined([call.prompt, call.completion], [(call, 1)]) for call in sampled]


def prefix_merging(sampled: Sequence[SampledCall]) -> list[BuiltRow]:
    """Build a row per chain of prompts."""
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
    """Compare rows with the calls they were built from.

    Raises `TraceError` if a row trains tokens that its call did not sample.
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
    """Return the tokens between two completions; None if the added prompt has no end of turn."""
    added = call.prompt[len(before.prompt) :]
    (ends,) = np.nonzero(added == end) if end is not None else (np.empty(0, np.int64),)
    if not len(ends):
        return None
    # If the completion already ends its turn, the end of turn in the prompt is the same token: skip it.
    closed = len(before.completion) > 0 and int(before.completion[-1]) == end
    return added[int(ends[0]) + (1 if closed else 0) :]


def _joined(pieces: Sequence[IdArray], placed: Sequence[tuple[SampledCall, int]]) -> BuiltRow:
    """Build a row from pieces. `placed` names the calls and the indices of the pieces that they sampled."""
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])
    parts = tuple(RowSpan(call.id, int(starts[index]), int(starts[index + 1])) for call, index in placed)
    return BuiltRow(np.concatenate(pieces), parts)


def _is_prefix(short: IdArray, long: IdArray) -> bool:
    return len(short) <= len(long) and np.array_equal(short, long[: len(short)])


def _path(segments: Mapping[str, SegmentTokens], segment_id: str) -> IdArray:
    """Return all tokens from the root through a segment."""
    pieces: list[IdArray] = []
    at: str | None = segment_id
    while at is not None:
        pieces.append(segments[at].ids)
        at = segments[at].parent_id
    return np.concatenate(pieces[::-1])
