"""The tokens of a rollout one by one, as in its training rows, for people to read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harnessgym.errors import StoreError
from harnessgym.store.facts import CallFacts
from harnessgym.tokens import versions_of
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.trajectories import Row


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token."""

    position: int
    """Index in the row."""
    id: int
    text: str | None
    """None if the policy's tokenizer is missing. Bytes that are not a whole character are written \\xff."""
    mask: int
    """1: sampled, and trained in this row."""
    logprob: float
    """0.0 if it was not sampled."""
    version: int
    """The policy version that sampled it; -1 if it was not sampled."""
    advantage: float | None
    """The advantage of its latest training; None if it was not trained."""
    call: int | None
    """Number of the call that sampled it; None for prompt tokens."""
    agent: str


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row, or the part of a row up to the end of a call."""

    row: int | None
    """Index among the rollout's rows; None for a call that no row contains."""
    call: int
    """Number of the call that it ends with."""
    call_id: str
    excluded: str | None
    """Why no row contains the call."""
    tokens: tuple[TokenLine, ...]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Row tokens [start, end) were sampled by a call."""

    start: int
    end: int
    call: CallFacts


@dataclass
class TokenRows:
    """The rows of one rollout. Calls are numbered by session, in the order they began."""

    rollout: TracedRollout
    _texts: dict[str | None, Callable[[int], str | None]] = field(default_factory=dict)
    """Decoders by policy: an id has another meaning in each policy's tokenizer."""

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers of calls by id."""
        return {call_id: number for number, call_id in enumerate(self.rollout.graph.calls)}

    def __len__(self) -> int:
        return len(self.rollout.trajectory.rows)

    def row(self, index: int) -> TokenRow:
        """Return one training row. Raises `StoreError` if there is no such row."""
        rows = self.rollout.trajectory.rows
        if not 0 <= index < len(rows):
            raise StoreError(
                f"Rollout {self.rollout.id} has {len(rows)} training rows, numbered from 0: there is no row "
                f"{index}."
            )
        return self._of_row(index, rows[index].turns[-1].call_id)

    def call(self, number: int) -> TokenRow:
        """Return a call's prompt and completion: the row that contains it, up to the end of the call.

        Raises `StoreError` if there is no such call.
        """
        calls = list(self.rollout.graph.calls.values())
        if not 0 <= number < len(calls):
            raise StoreError(
                f"Rollout {self.rollout.id} has {len(calls)} calls, numbered from 0: there is no call "
                f"{number}."
            )
        call_id = calls[number].id
        # Several rows may share the call. False sorts first, so a row that trains it is preferred.
        holding = [
            (not row.mask[turn.start], index)
            for index, row in enumerate(self.rollout.trajectory.rows)
            for turn in row.turns
            if turn.call_id == call_id
        ]
        return self._of_row(min(holding)[1], call_id) if holding else self._excluded(calls[number])

    def _of_row(self, index: int, last_call: str) -> TokenRow:
        row = self.rollout.trajectory.rows[index]
        end = next(turn.end for turn in row.turns if turn.call_id == last_call)
        calls = self.rollout.graph.calls
        turns = [_Sampled(turn.start, turn.end, calls[turn.call_id]) for turn in row.turns if turn.end <= end]
        lines = _lines(row, end, turns, self._named(row.policy_id), self._advantages(turns))
        return TokenRow(index, self.numbers[last_call], last_call, None, lines)

    def _excluded(self, call: CallFacts) -> TokenRow:
        """Return a call that no row contains. Its sampled tokens still have logprobs and versions."""
        prompt = self.rollout.path(call.prompt_segment)
        segment = self.rollout.segments.get(call.completion_segment or "")
        made = () if segment is None else tuple(segment.ids)
        logprobs = made and ((segment.logprobs if segment is not None else None) or (0.0,) * len(made))
        versions = versions_of(call.versions, len(made)) if made and call.versions else (-1,) * len(made)
        text = self.text(call.policy_id)
        number = self.numbers[call.id]
        agent = self._agents.get(call.agent_id or "", "")
        prompt_lines = [
            TokenLine(at, int(token), text(int(token)), 0, 0.0, -1, None, None, "")
            for at, token in enumerate(prompt)
        ]
        sampled = [
            TokenLine(
                len(prompt) + at,
                int(token),
                text(int(token)),
                0,
                float(logprob),
                int(version),
                None,
                number,
                agent,
            )
            for at, (token, logprob, version) in enumerate(zip(made, logprobs, versions, strict=True))
        ]
        reasons = {item.call_id: item.reason for item in self.rollout.trajectory.exclusions}
        return TokenRow(None, number, call.id, reasons.get(call.id, call.status), (*prompt_lines, *sampled))

    def _named(self, policy_id: str) -> "_Names":
        return _Names(self.text(policy_id), self.numbers, self._agents)

    @cached_property
    def _agents(self) -> dict[str, str]:
        return {agent.id: agent.name for agent in self.rollout.graph.agents}

    def text(self, policy_id: str | None) -> Callable[[int], str | None]:
        """Return the decoder of a policy (None: the rollout's own). Each tokenizer is read once."""
        if policy_id not in self._texts:
            self._texts[policy_id] = self._text_of(policy_id)
        return self._texts[policy_id]

    def _text_of(self, policy_id: str | None) -> Callable[[int], str | None]:
        rollout = self.rollout
        language: Any = rollout.store.read(
            lambda conn: rollout.languages.of_rollout(conn, rollout.facts, policy_id)
        )
        if isinstance(language, str):
            return lambda _: None
        known: dict[int, str | None] = {}

        def text(token: int) -> str | None:
            if token not in known:
                try:
                    known[token] = language.renderer.written([token]).decode("utf-8", "backslashreplace")
                except LookupError:
                    known[token] = None
            return known[token]

        return text

    def _advantages(self, turns: Sequence[_Sampled]) -> dict[int, float]:
        """Return the advantages by position in the row."""
        advantages = self.rollout.advantages
        return {
            turn.start + at: value
            for turn in turns
            for start, end, value in advantages.get(turn.call.completion_segment or "", ())
            for at in range(start, end)
        }


@dataclass(frozen=True, slots=True)
class _Names:
    text: Callable[[int], str | None]
    numbers: dict[str, int]
    agents: dict[str, str]


def _lines(
    row: Row, end: int, turns: Sequence[_Sampled], names: _Names, advantages: dict[int, float]
) -> tuple[TokenLine, ...]:  # fmt: skip
    owner: list[CallFacts | None] = [None] * end
    for turn in turns:
        owner[turn.start : turn.end] = [turn.call] * (turn.end - turn.start)
    columns = zip(
        row.ids[:end].tolist(), row.mask[:end].tolist(), row.logprobs[:end].tolist(),
        row.versions[:end].tolist(), owner, strict=True,
    )  # fmt: skip
    return tuple(
        TokenLine(
            at, token, names.text(token), mask, logprob, version, advantages.get(at) if mask else None,
            None if call is None else names.numbers[call.id],
            "" if call is None else names.agents.get(call.agent_id or "", ""),
        )
        for at, (token, mask, logprob, version, call) in enumerate(columns)
    )  # fmt: skip
