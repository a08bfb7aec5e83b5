"""Writes the calls of an imported rollout: texts as chat completions, tokens as a forest."""

import json
from dataclasses import dataclass, field
from typing import Any, cast

from harnessgym.errors import TraceError
from harnessgym.message import Message
from harnessgym.store import calls
from harnessgym.store.bodies import BaseBody, SplitBody, split_body, text_hash
from harnessgym.store.calls import FINISHED, CallIntent, CallKind, CallOutcome, CallStatus, Segment
from harnessgym.store.import_rows import SOURCE, ImportRows
from harnessgym.store.tables import new_id
from harnessgym.tokens import VersionSpan, hash_ids
from harnessgym.traces.atif.schema import Metrics
from harnessgym.traces.forest import Attachment, Forest
from harnessgym.traces.transcript import to_wire

Json = dict[str, Any]
_HEAD = '{"messages":['


@dataclass(frozen=True, slots=True)
class ImportedCall:
    """One call of a document."""

    name: str
    """Its id in the document."""
    session: str
    agent_id: str | None
    """Id of the agent in the store."""
    created_at: float
    continues: str | None
    """The call whose conversation it continues, by its id in the document."""
    shared: int
    """How many leading messages the two share."""
    new: tuple[Message, ...]
    answer: Message | None
    tools: list[Json]
    metrics: Metrics | None
    about: Json
    """Further fields that our own export writes."""
    policy_id: str | None = None
    """Id of the policy in the store; None if the document has one policy."""


@dataclass
class _Said:
    """The message texts of a stored request, and the text of its answer."""

    elements: list[str]
    answer: str | None


@dataclass
class ImportCalls:
    """Writes calls. A call must be added after the one that it continues."""

    rows: ImportRows
    _forests: dict[tuple[str, str | None], Forest] = field(default_factory=dict)
    """Forests by session and policy: a policy never continues the tokens of another."""
    _ends: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Maps a call to its completion segment and the policy that sampled it."""
    _said: dict[str, _Said] = field(default_factory=dict)
    _ordinals: dict[str, int] = field(default_factory=dict)

    def add(self, call: ImportedCall) -> None:
        """Write a call with its texts and tokens. Raises `TraceError` if its counts contradict each other."""
        conn = self.rows.conn
        session_id = self.rows.session(call.session)
        call_id = self.rows.name(call.name)
        metrics = call.metrics or Metrics()
        about = call.about
        forest = self._forests.setdefault((session_id, call.policy_id), Forest(session_id))
        ids = metrics.prompt_token_ids or []
        parent = self._parent(forest, call, ids)
        segment, new = forest.add_prompt(
            ids if parent is None else ids[forest.length(parent.segment_id) :], _id(parent)
        )
        kind = cast("CallKind", about.get("kind", "policy"))
        status = cast("CallStatus", about.get("status", "committed"))
        joined = (None, "none") if parent is None else (parent.call_id, "token_prefix")
        intent = CallIntent(
            id=call_id,
            session_id=session_id,
            rollout_id=self.rows.rollout_id,
            ordinal=self._ordinals.get(session_id, 0),
            protocol="chat",
            kind=kind,
            history="keep",
            request_digest=new_id(),
            chain_digest=new_id(),
            prompt_len=len(ids),
            prompt_hash=hash_ids(ids),
            prompt_segment=segment.id,
            upstream=SOURCE,
            sampling_applied=about.get("sampling", {}),
            agent_id=call.agent_id,
            parent_call_id=joined[0],
            parent_evidence=joined[1],
            break_class=about.get("break_class"),
            break_detail=about.get("break_detail"),
            side_call=about.get("side_call"),
            policy_id=call.policy_id,
        )
        self._ordinals[session_id] = intent.ordinal + 1
        calls.intend(conn, intent, segment if new else None, self._request(call, call_id))
        if status in FINISHED:
            self._finish(forest, call, call_id, segment, status)
        else:
            calls.set_status(conn, call_id, status, about.get("error"))
        self.rows.began(call_id, call.created_at)

    def _finish(
        self, forest: Forest, call: ImportedCall, call_id: str, prompt: Segment, status: CallStatus
    ) -> None:
        metrics = call.metrics or Metrics()
        about = call.about
        ids = tuple(metrics.completion_token_ids or ())
        logprobs = metrics.logprobs
        if logprobs is not None and len(logprobs) != len(ids):
            raise TraceError(f"Call {call.name}: {len(logprobs)} logprobs for {len(ids)} completion tokens.")
        spans = tuple(
            VersionSpan(*span)
            for span in about.get("versions", [[0, len(ids), 0]] if logprobs and ids else [])
        )
        for span in spans:
            self.rows.version(span.version, call.policy_id)
        sampled = None if logprobs is None else tuple(logprobs)
        segment = Segment(new_id(), prompt.session_id, "completion", prompt.id, ids, sampled)
        forest.graft(call_id, segment, call_id)
        self._ends[call_id] = segment.id, call.policy_id
        outcome = CallOutcome(
            call_id=call_id,
            segment=segment,
            spans=spans,
            answer_digest=new_id(),
            finish_reason=about.get("finish_reason", "stop"),
            stop_token=None,
            upstream=SOURCE,
            usage=_usage(metrics, forest, prompt),
            timings=about.get("timings", {}),
            status=status,
            body=_answer(call.answer),
        )
        calls.finish(self.rows.conn, outcome)

    def _parent(self, forest: Forest, call: ImportedCall, ids: list[int]) -> Attachment | None:
        """Return the call of the same policy whose tokens the prompt begins with; None if there is none."""
        # A document may name a parent, but the tokens decide: the named call counts only if its prompt and
        # completion are a prefix of this prompt.
        named = call.about.get("parent")
        end, policy_id = self._ends.get(self.rows.known(named) or "", (None, None))
        if (
            end is not None
            and policy_id == call.policy_id
            and ids[: forest.length(end)] == list(forest.ids(end))
        ):
            return Attachment(self.rows.known(named) or "", end, 0)
        return forest.find_prefix(ids) if ids and named is None else None

    def _request(self, call: ImportedCall, call_id: str) -> SplitBody | None:
        """Return the request's body; None if the document has no messages for it.

        Only messages that the base request does not have are stored.
        """
        added = [_wire(message) for message in call.new]
        base_id = self.rows.known(call.continues)
        base = self._said.get(base_id or "")
        before = [] if base is None else [*base.elements, *([] if base.answer is None else [base.answer])]
        elements = [*before[: call.shared], *added]
        answer = None if call.answer is None else _wire(call.answer)
        self._said[call_id] = _Said(elements, answer)
        if not elements:
            return None
        tail = f'],"tools":{_dumped(call.tools)}' if call.tools else "]"
        header = json.dumps([len(_HEAD), ","])
        text = f'{_HEAD}{tail},"model":"{SOURCE}"}}'
        kept = 0 if base is None else min(call.shared, len(base.elements))
        parts = tuple((text_hash(element), element) for element in elements[kept:])
        known = BaseBody(base_id, kept) if base_id is not None and kept else None
        return SplitBody(parts, f"{header}\n{text}".encode(), known)


def _id(parent: Attachment | None) -> str | None:
    return None if parent is None else parent.segment_id


def _usage(metrics: Metrics, forest: Forest, prompt: Segment) -> dict[str, int]:
    """Return the reported token counts, but only those that do not follow from stored tokens."""
    stored = forest.length(prompt.id)
    counts = {
        "told_prompt_tokens": metrics.prompt_tokens if metrics.prompt_tokens != stored else None,
        "told_completion_tokens": metrics.completion_tokens if not metrics.completion_token_ids else None,
        "cached_tokens": metrics.cached_tokens,
    }
    return {name: number for name, number in counts.items() if number is not None}


def _answer(answer: Message | None) -> SplitBody | None:
    if answer is None:
        return None
    reply = {"object": "chat.completion", "choices": [{"index": 0, "message": to_wire(answer)}]}
    return split_body(_dumped(reply).encode())


def _wire(message: Message) -> str:
    return _dumped(to_wire(message))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
