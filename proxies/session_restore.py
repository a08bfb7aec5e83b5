"""The requests of a session's latest calls, read back from the store.

With them, a break is diagnosed after a restart of the proxy exactly as before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harnessgym.message import Message, ToolSpec
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import bodies
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.trace_store import TraceStore
from proxies.constraints import constrained
from proxies.conversations import latest
from proxies.dialect import ModelRequest, RequestProblem
from proxies.dialects import DIALECTS, load_dialect
from proxies.language import ReadSampled
from proxies.previous import joined, not_found, response_id


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The recorded calls of a session whose requests can be read again."""

    store: TraceStore
    calls: Mapping[str, RecordedCall]
    """By id."""
    segments: Mapping[str, Segment]
    read: ReadSampled
    options: SessionOptions

    def request(self, call_id: str) -> ModelRequest:
        """A call's request with its whole conversation. Raises `RequestProblem` if it cannot be read."""
        # A request may continue an earlier one by id (Responses' `previous_response_id`). Walk back to the
        # first, then join forwards. A loop, since a chain may be longer than Python's recursion limit.
        later = [self._sent(call_id)]
        answers = list[Message]()
        while (previous := later[-1].previous) is not None:
            later.append(self._sent(previous))
            answers.append(self._answer(previous, later[-1].tools))
        known = later.pop()
        while later:
            known = joined(known, answers.pop(), later.pop())
        # Bodies are stored as clients sent them. The policy saw them with its constraints put into words.
        in_words = self.options.constraints == "prompt" and self.options.upstream is None
        return constrained(known, "prompt") if in_words else known

    def _sent(self, call_id: str) -> ModelRequest:
        """A call's request as its client sent it."""
        call = self.calls.get(call_id)
        body = None if call is None else self.store.read(lambda conn: bodies.of_call(conn, call_id))
        if call is None or body is None or call.protocol not in DIALECTS:
            raise not_found(response_id(call_id))
        dialect = load_dialect(call.protocol)
        request = dialect.parse(body, {":path": dialect.routes[0].path})
        if request.fill is None:
            return request
        return request.fill({earlier: self._answer(earlier) for earlier in request.refers_to})

    def _answer(self, call_id: str, offered: Sequence[ToolSpec] = ()) -> Message:
        call = self.calls.get(call_id)
        if call is None or call.completion_segment is None:
            raise not_found(response_id(call_id))
        return self.read(self.segments[call.completion_segment].ids, call.policy_id, offered)


def latest_requests(
    store: TraceStore,
    recorded: Sequence[RecordedCall],
    segments: Mapping[str, Segment],
    read: ReadSampled,
    options: SessionOptions,
) -> dict[str, ModelRequest]:
    """The request of the last call of each of a session's latest branches, by call id. Requests that cannot
    be read are left out.
    """
    stored = StoredRequests(store, {call.id: call for call in recorded}, segments, read, options)
    out = {}
    for call in latest(recorded):
        # An unreadable request costs only the diagnosis of a later break. The session itself is whole
        # without it.
        try:
            out[call.id] = stored.request(call.id)
        except RequestProblem:
            continue
    return out
