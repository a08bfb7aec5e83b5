"""Writes calls to the store, and decides which writes are waited for.

A call's intent is queued before the engine is asked, and written within 10 ms. Its outcome is awaited before
the harness can act on the answer. Delivery notes are not awaited: they share a later transaction. What is
recorded about a call is defined in `harnessgym.store.calls`: `CallIntent` and `CallOutcome`.
"""

import asyncio
from concurrent.futures import Future
from functools import partial
from typing import Literal, TypeVar

from sqlalchemy import Connection

from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.store import agents, calls, events
from harnessgym.store.agents import AgentRow
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.store.events import EventRow
from harnessgym.store.trace_store import TraceStore, Work
from harnessgym.traces.orchestration.rows import OrchestrationRows
from proxies import orchestration
from proxies.reading import ReadBody, split_of

T = TypeVar("T")
Delivery = Literal["delivered", "acknowledged", "undelivered"]
_NOTE_LINGER_S = 0.05
_INTENT_LINGER_S = 0.01
"""How long a delivery note, and an intent, wait for a transaction that they can share. A transaction for the
intent alone would delay the answer of an engine that is quick, and is worth nothing to a client: it is shown
no token before the outcome is committed.
"""


class Recorder:
    """Writes calls. Cancelling a wait never cancels the write."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._notes: dict[str, Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None

    def intend(
        self,
        intent: CallIntent,
        segment: Segment | None,
        body: bytes,
        agent: AgentRow | None = None,
        rows: OrchestrationRows | None = None,
    ) -> "Future[None]":
        """Queue a call's intent with its new prompt tokens, request body, new agent and orchestration rows.
        All become durable in one transaction.
        """

        def work(conn: Connection) -> None:
            # The agent first: the call's row and the orchestration rows refer to it.
            if agent is not None:
                agents.add(conn, agent)
            calls.intend(conn, intent, segment, split)
            orchestration.write(conn, rows)

        # Split here and not in `work`: the store's one writer thread should only write, and may have to run
        # `work` again.
        split = split_of(body)
        intended = self._submit(work, wake=False)
        self._flush_within(_INTENT_LINGER_S)
        if isinstance(body, ReadBody):
            intended.add_done_callback(partial(body.stored, intent.id))
        return intended

    def add_event(self, event: EventRow) -> None:
        """Queue an event without waiting for it."""
        self._submit(lambda conn: events.add(conn, event))

    async def finish(
        self, outcome: CallOutcome, rows: OrchestrationRows | None, intended: "Future[None]"
    ) -> None:
        """Commit a call's tokens, outcome and orchestration rows. Its intent must be queued, but need not be
        committed yet.

        Raises `StoreError` if the store refused the intent or the outcome. Raises `StoreUnavailable` if the
        store cannot be reached; the outcome may or may not be stored then.
        """

        def work(conn: Connection) -> None:
            calls.finish(conn, outcome)
            orchestration.write(conn, rows)

        if intended.done():
            intended.result()
            await self.wait(self._submit(work))
            return
        # The store's queue is first in, first out, so the outcome normally lands right behind its intent
        # and need not wait for it.
        try:
            await self.wait(self._submit(work))
        except StoreUnavailable:
            raise
        except StoreError:
            # The order can be reversed: when the database rolls an intent back, it is retried behind work
            # that was queued after it. The outcome then has no row to update, so write it again once the
            # intent is committed.
            await self.wait(intended)
            await self.wait(self._submit(work))

    async def fail(self, call_id: str, error: str) -> None:
        """Commit the failure of a call."""
        await self.wait(self._submit(lambda conn: calls.fail(conn, call_id, error)))

    def note(self, call_id: str, delivery: Delivery) -> None:
        """Note how far an answer came: the strongest of undelivered, delivered, acknowledged is kept."""
        # A later request can acknowledge an answer before its own connection reports the delivery, so notes
        # arrive in any order and must never weaken one another.
        order = ("undelivered", "delivered", "acknowledged")
        known = self._notes.get(call_id, delivery)
        self._notes[call_id] = max(known, delivery, key=order.index)
        self._flush_within(_NOTE_LINGER_S)

    def flush(self) -> None:
        """Have everything written that waits for another write."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._submit_notes()
        self._store.wake()

    async def write(self, work: Work[T]) -> T:
        """Commit any other work."""
        return await self.wait(self._submit(work))

    @staticmethod
    async def wait(future: "Future[T]") -> T:
        """Wait for a commit. Raises `StoreError` if the store refused it."""
        # Shielded: a client that leaves must not cancel a write that the store has begun.
        return await asyncio.shield(asyncio.wrap_future(future))

    def _submit(self, work: Work[T], *, wake: bool = True) -> "Future[T]":
        # Notes go first: they are about calls that were queued earlier, and so share this transaction.
        self._submit_notes()
        return self._store.submit(work, wake=wake)

    def _flush_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is not None and self._timer.when() <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self.flush)

    def _submit_notes(self) -> None:
        notes = self._notes
        self._notes = {}
        for delivery in set(notes.values()):
            self._store.submit(
                partial(
                    calls.observe,
                    call_ids=[call_id for call_id, noted in notes.items() if noted == delivery],
                    status=delivery,
                ),
                wake=False,
            )
