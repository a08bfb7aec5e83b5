"""Receives spans from instrumented harnesses: OTLP/HTTP at `/v1/traces`, beside the model's routes.

    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=<base URL>/s/<key>/v1/traces

or without the key in the path, and `OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=Bearer%20<key>` (or
`x-api-key=<key>`).

A span is reduced to a report (`otlp.conventions`) and stored as an event of kind `span` of its rollout. It is
committed before the exporter gets its answer, and stored once even if it is sent again. Spans beyond the
limit are rejected. When the rollout's last session is sealed, the spans are woven into its events and edges
(`otlp.weave`), so it does not matter when or in which order they arrived.

Nothing is stored twice. A model call, tool call or spawn that the proxy saw stays the proxy's event,
unchanged. The `span` event refers to it by its call id or tool call id, and edges lead from it to events that
only spans report. Those have `source` "otlp" and their `span_id`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from sqlalchemy import Connection as SqlConnection

from harnessgym.errors import StoreError
from harnessgym.store import edges, events, sessions
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.facts import CallFacts, agents_of, calls_of
from harnessgym.store.trace_store import TraceStore
from proxies.connection import BodyTooLarge, Connection
from proxies.otlp.conventions import SpanReport, report_of
from proxies.otlp.record import SOURCE, row_id
from proxies.otlp.tree import SeenCall
from proxies.otlp.weave import weave
from proxies.otlp.wire import (
    JSON,
    Encoding,
    OtlpExport,
    OtlpSpan,
    WireProblem,
    decode,
    encoding_of,
    failure,
    success,
    unpacked,
)
from proxies.recorder import Recorder
from proxies.session import Session, SessionTable

ROUTE = "/v1/traces"
KIND = "span"
_MAX_BODY = 16 << 20
"""Limit of a request in bytes, both compressed and decompressed."""
MAX_SPANS = 20_000
"""Limit of stored spans per rollout."""


@dataclass
class _RolloutSpans:
    """The spans of one rollout that are stored."""

    spans: set[tuple[str, str]] | None = None
    """Trace and span ids; None until they are read from the store."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SpanIntake:
    """Stores the spans that harnesses export."""

    def __init__(
        self, store: TraceStore, table: SessionTable, recorder: Recorder, *, max_spans: int = MAX_SPANS
    ) -> None:
        self._store = store
        self._sessions = table
        self._recorder = recorder
        self._max_spans = max_spans
        self._stored: dict[str, _RolloutSpans] = {}

    async def serve(self, connection: Connection, key: str | None) -> None:
        """Answer one export. `key` is the session key in the path, if there is one."""
        encoding: Encoding = JSON
        try:
            encoding = encoding_of(connection.headers.get("content-type", ""))
            session = await self._session(key or _key(connection))
            export = await self._read(connection, encoding)
            rejected, reason = await self._keep(session, export)
        except StoreError as error:
            await _refuse(connection, encoding, 503, str(error))
        except WireProblem as problem:
            await _refuse(connection, encoding, problem.status, problem.message)
        else:
            await connection.respond(200, {"content-type": encoding}, success(encoding, rejected, reason))

    async def settle(self, session: Session) -> None:
        """Weave a rollout's spans into its events and edges, once the last of its sessions is sealed."""
        rollout_id = session.row.rollout_id
        # The lock waits for exports that are being committed: their spans must be part of the weave.
        async with self._stored.setdefault(rollout_id, _RolloutSpans()).lock:
            event_rows, drawn = await asyncio.to_thread(self._woven, rollout_id)
            if event_rows or drawn:
                await self._recorder.write(lambda conn: _write(conn, event_rows, drawn))
        self._stored.pop(rollout_id, None)

    async def _session(self, key: str | None) -> Session:
        session = await self._sessions.by_key(key) if key else None
        if session is None:
            raise WireProblem(401, "This key opens no session. Use the key that came with the endpoint.")
        if session.sealed:
            raise WireProblem(403, "This session is sealed: its rollout has ended. Do not retry.")
        return session

    async def _read(self, connection: Connection, encoding: Encoding) -> OtlpExport:
        try:
            body = await connection.body(_MAX_BODY)
        except BodyTooLarge:
            raise WireProblem(
                413, f"The body has more than {_MAX_BODY:,} bytes: export fewer spans at once."
            ) from None
        packed = connection.headers.get("content-encoding", "")
        return await asyncio.to_thread(lambda: decode(unpacked(body, packed, _MAX_BODY), encoding))

    async def _keep(self, session: Session, export: OtlpExport) -> tuple[int, str]:
        """Commit the spans that are new. Returns the number of rejected spans and the reason."""
        rollout_id = session.row.rollout_id
        # Exporters resend after a timeout, perhaps while the first request is still being written. The lock
        # makes the check for duplicates and the commit one step.
        rollout_spans = self._stored.setdefault(rollout_id, _RolloutSpans())
        async with rollout_spans.lock:
            if rollout_spans.spans is None:
                rollout_spans.spans = await asyncio.to_thread(self._load, rollout_id)
            fresh = {_ids(span): span for span in export.spans if _ids(span) not in rollout_spans.spans}
            room = max(0, self._max_spans - len(rollout_spans.spans))
            kept = dict(list(fresh.items())[:room])
            rows = [_row(rollout_id, session.row.id, span) for span in kept.values()]
            try:
                await self._recorder.write(lambda conn: events.add_many(conn, rows))
            except StoreError as error:
                # The write may or may not have happened, so the next export reads the ids from the store.
                rollout_spans.spans = None
                raise WireProblem(503, str(error)) from None
            rollout_spans.spans.update(kept)
        if len(fresh) > room:
            return export.rejected + len(fresh) - room, f"A rollout has {self._max_spans:,} spans at most."
        return export.rejected, export.reason

    def _load(self, rollout_id: str) -> set[tuple[str, str]]:
        rows = self._store.read(lambda conn: events.of_rollout(conn, rollout_id, KIND))
        return {(row.attributes["trace_id"], row.span_id or "") for row in rows}

    def _woven(self, rollout_id: str) -> tuple[list[EventRow], list[EdgeRow]]:
        """The rows to write: none while a session is open or if there are no spans."""
        spans = self._store.read(lambda conn: events.of_rollout(conn, rollout_id, KIND))
        if not spans or not self._store.read(lambda conn: _all_sealed(conn, rollout_id)):
            return [], []
        return self._store.read(lambda conn: _weave(conn, rollout_id, spans))


def _weave(
    conn: SqlConnection, rollout_id: str, spans: Sequence[EventRow]
) -> tuple[list[EventRow], list[EdgeRow]]:
    recorded = calls_of(conn, rollout_id)
    there = [event for event in events.of_rollout(conn, rollout_id) if event.kind != KIND]
    event_rows, drawn = weave(
        rollout_id,
        [SpanReport.of_stored(row.attributes) for row in spans],
        [_seen(call) for call in recorded],
        [(agent.name, agent.id) for agent in agents_of(conn, rollout_id)],
        there,
        edges.of_rollout(conn, rollout_id),
    )
    # An edge may end at a model call, which has no event row yet: write one for each such call.
    ends = {end for edge in drawn for end in (edge.source_event_id, edge.target_event_id)} - {
        event.id for event in there
    }
    return [*(_call_event(rollout_id, call) for call in recorded if call.id in ends), *event_rows], drawn


def _write(conn: SqlConnection, event_rows: Sequence[EventRow], drawn: Sequence[EdgeRow]) -> None:
    events.add_many(conn, event_rows)
    edges.add_many(conn, drawn)


def _seen(call: CallFacts) -> SeenCall:
    """A recorded call with its times. Its id begins with its start in microseconds, in hex."""
    start = int(call.id[:14], 16) / 1e6
    return SeenCall(call.id, call.agent_id, start, start + float(call.timings.get("total_s", 0.0)))


def _call_event(rollout_id: str, call: CallFacts) -> EventRow:
    return EventRow(rollout_id, "llm_call", {}, call.created_at, call.id, call.agent_id, id=call.id)


def _row(rollout_id: str, session_id: str, span: OtlpSpan) -> EventRow:
    report = report_of(span)
    attributes = {**report.stored(), "session_id": session_id}
    ids = (span.start, rollout_id, span.trace_id, span.span_id)
    return EventRow(
        rollout_id, KIND, attributes, span.start, source=SOURCE, span_id=span.span_id, id=row_id(*ids)
    )


def _ids(span: OtlpSpan) -> tuple[str, str]:
    return span.trace_id, span.span_id


def _all_sealed(conn: SqlConnection, rollout_id: str) -> bool:
    rows = (sessions.get(conn, session_id) for session_id in sessions.of_rollout(conn, rollout_id))
    return all(row is not None and row.sealed for row in rows)


async def _refuse(connection: Connection, encoding: Encoding, status: int, message: str) -> None:
    retry = {"retry-after": "1"} if status == 503 else {}
    await connection.respond(status, {"content-type": encoding, **retry}, failure(encoding, status, message))


def _key(connection: Connection) -> str | None:
    """The session's key in the headers. Some exporters send the header URL-encoded, as it is configured."""
    header = connection.headers.get("x-api-key") or unquote(connection.headers.get("authorization", ""))
    kind, _, rest = header.partition(" ")
    return (rest.strip() if kind.lower() == "bearer" else header) or None
