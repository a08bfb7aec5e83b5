"""What the proxy writes to the store, and when it may wait for it.

An intent is queued before the engine is asked, an outcome is awaited before a harness can act; how an answer
was delivered is noted in passing and shares a later transaction.
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
_LINGER_S = 0.05
"""How long a delivery note waits for a transaction that it can share. Nothing waits for a note."""


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
        happened: OrchestrationRows | None = None,
    ) -> "Future[None]":
        """Queue a call's intent with its new prompt tokens, its request body, its new agent and what happened
        with it; all become durable together.
        """

        def work(conn: Connection) -> None:
            if agent is not None:
                agents.add(conn, agent)
            calls.intend(conn, intent, segment, split)
            orchestration.write(conn, happened)

        split = split_of(body)
        intended = self._submit(work)
        if isinstance(body, ReadBody):
            intended.add_done_callback(partial(body.stored, intent.id))
        return intended

    def happened(self, event: EventRow) -> None:
        """Queue an event. Nothing waits for it."""
        self._submit(lambda conn: events.add(conn, event))

    async def finish(
        self, outcome: CallOutcome, happened: OrchestrationRows | None, intended: "Future[None]"
    ) -> None:
        """Commit a call's tokens and outcome, with what it decided. Its intent is queued, but need not be
        committed yet.

        Raises `StoreError` if the store refused one of them, `StoreUnavailable` if for now; whether it has
        the outcome is then not known.
        """

        def work(conn: Connection) -> None:
            calls.finish(conn, outcome)
            orchestration.write(conn, happened)

        if intended.done():
            intended.result()
            await self.wait(self._submit(work))
            return
        try:
            await self.wait(self._submit(work))
        except StoreUnavailable:
            raise
        except StoreError:
            await self.wait(
                intended
            )  # one that the database undid is tried again behind what was queued after it
            await self.wait(self._submit(work))

    async def fail(self, call_id: str, error: str) -> None:
        """Commit that a call failed."""
        await self.wait(self._submit(lambda conn: calls.fail(conn, call_id, error)))

    def note(self, call_id: str, delivery: Delivery) -> None:
        """Note how far an answer came. An acknowledgement outweighs a delivery, that its absence."""
        order = ("undelivered", "delivered", "acknowledged")
        known = self._notes.get(call_id, delivery)
        self._notes[call_id] = max(known, delivery, key=order.index)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self.flush)

    def flush(self) -> None:
        """Queue the notes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._submit_notes()

    async def write(self, work: Work[T]) -> T:
        """Commit anything else."""
        return await self.wait(self._submit(work))

    @staticmethod
    async def wait(future: "Future[T]") -> T:
        """Wait for a commit. Raises `StoreError` if the store refused."""
        return await asyncio.shield(asyncio.wrap_future(future))

    def _submit(self, work: Work[T]) -> "Future[T]":
        self._submit_notes()
        return self._store.submit(work)

    def _submit_notes(self) -> None:
        notes = self._notes
        self._notes = {}
        for delivery in set(notes.values()):
            self._store.submit(
                partial(
                    calls.observe,
                    call_ids=[key for key, found in notes.items() if found == delivery],
                    status=delivery,
                )
            )
