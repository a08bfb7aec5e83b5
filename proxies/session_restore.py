"""What the latest calls of a session were asked, read back from the store: a break is told after a restart
as before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harnessgym.message import Message
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import bodies
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.trace_store import TraceStore
from harnessgym.tokens import TokenIds
from proxies.constraints import constrained
from proxies.conversations import latest
from proxies.dialect import ModelRequest, RequestProblem
from proxies.dialects import DIALECTS, load_dialect
from proxies.previous import joined, not_found, response_id


@dataclass(frozen=True, slots=True)
class Recollection:
    """The recorded calls of a session whose requests can be read again."""

    store: TraceStore
    calls: Mapping[str, RecordedCall]
    """By id."""
    segments: Mapping[str, Segment]
    read: Callable[[TokenIds, str | None], Message]
    options: SessionOptions

    def request(self, call_id: str) -> ModelRequest:
        """What a call was asked, with the whole conversation in it. Raises `RequestProblem` if that cannot
        be read.
        """
        later = [self._sent(call_id)]
        answers = list[Message]()
        while (previous := later[-1].previous) is not None:
            answers.append(self._answer(previous))
            later.append(self._sent(previous))
        known = later.pop()
        while later:
            known = joined(known, answers.pop(), later.pop())
        in_words = self.options.constraints == "prompt" and self.options.upstream is None
        return constrained(known, "prompt") if in_words else known

    def _sent(self, call_id: str) -> ModelRequest:
        """A call's request as its client sent it."""
        call = self.calls.get(call_id)
        body = None if call is None else self.store.read(lambda conn: bodies.of_call(conn, call_id))
        if call is None or body is None or call.protocol not in DIALECTS:
            raise not_found(response_id(call_id))
        dialect = load_dialect(call.protocol)
        return dialect.parse(body, {":path": dialect.routes[0].path})

    def _answer(self, call_id: str) -> Message:
        call = self.calls.get(call_id)
        if call is None or call.completion_segment is None:
            raise not_found(response_id(call_id))
        return self.read(self.segments[call.completion_segment].ids, call.policy_id)


def latest_requests(
    store: TraceStore,
    recorded: Sequence[RecordedCall],
    segments: Mapping[str, Segment],
    read: Callable[[TokenIds, str | None], Message],
    options: SessionOptions,
) -> dict[str, ModelRequest]:
    """What the last call of each of a session's latest branches was asked, by call; without those that
    cannot be read.
    """
    recollection = Recollection(store, {call.id: call for call in recorded}, segments, read, options)
    out = {}
    for call in latest(recorded):
        try:
            out[call.id] = recollection.request(call.id)
        except RequestProblem:
            continue
    return out
