"""Changes of rollouts as server-sent events, read from the store, so any node of the run can send them.

An event's id is its time, its rollout and its kind. A client that reconnects to any node with `Last-Event-ID`
gets what it missed. Where several machines write (PostgreSQL), each look reaches back for events that were
committed late: after a reconnect a client may see an event twice, and it misses none.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from harnessgym.errors import ConfigError
from harnessgym.store import TraceStore, clock, rollout_states
from harnessgym.store.rollout_states import Change, RolloutState

_LOOK_S = 0.1
_LATE_S = 2.0
_REMEMBERED = 10_000

Key = tuple[float, str, str]


def state_as_json(state: RolloutState) -> dict[str, Any]:
    """A rollout as the endpoints return it."""
    return {**asdict(state), "reward": state.reward, "final": state.final}


def parse_event_id(text: str) -> Key:
    """Split an event id into time, rollout and kind. Raises `ConfigError` if it is not one."""
    at, _, rest = text.partition(":")
    rollout_id, _, kind = rest.partition(":")
    try:
        time_s = float(at)
    except ValueError:
        time_s = math.nan
    # No event happens at an infinite time: such a stream would send nothing for ever.
    if not math.isfinite(time_s):
        raise ConfigError(f"Last-Event-ID {text!r} is no event's id. Give the `id` of an event as it came.")
    return time_s, rollout_id, kind


class EventStream:
    """The changes of a run's rollouts, for one client."""

    def __init__(
        self, store: TraceStore, run_id: str, rollout_ids: list[str] | None, after: Key | None, since: float
    ) -> None:
        """With `rollout_ids`, only these and their later attempts. Begins after the event `after`, else at
        `since`.
        """
        self._store = store
        self._run_id = run_id
        self._ids = None if rollout_ids is None else set(rollout_ids)
        self._late_s = 0.0 if store.url.startswith("sqlite") else _LATE_S
        self._after = after
        self._cursor = since if after is None else after[0]
        self._told: dict[Key, None] = {}
        self._unfinished = set(rollout_ids or ())
        self._looked = time.monotonic()
        """When the last look began."""

    @property
    def over(self) -> bool:
        """Whether no more events can come."""
        return self._ids is not None and not self._unfinished

    async def look(self) -> list[tuple[str, Change, RolloutState]]:
        """Events since the last look: id, kind and the rollout's present state."""
        began = time.monotonic()
        changes = await self._store.aread(self._changed)
        self._looked = began
        out = []
        for at, kind, state in changes:
            key = (at, state.id, kind)
            # SQLite commits in order, so what sorts before `after` was sent. PostgreSQL may commit an earlier
            # event later: there an event is skipped only if this stream sent it.
            if key in self._told or (
                self._after is not None and self._late_s == 0.0 and _seen(key, self._after)
            ):
                continue
            self._told[key] = None
            self._cursor = max(self._cursor, at)
            out.append((f"{at!r}:{state.id}:{kind}", kind, state))
        while len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return out

    def _changed(self, conn: Connection) -> list[tuple[float, Change, RolloutState]]:
        self._follow(conn)
        # If the clock was set back, what happened since the last look has earlier times than what was sent.
        last_look = clock.read(conn) - (time.monotonic() - self._looked)
        since = min(self._cursor, last_look) - self._late_s
        return rollout_states.changed(
            conn, self._run_id, since, None if self._ids is None else sorted(self._ids)
        )

    def _follow(self, conn: Connection) -> None:
        """Watch the attempts that followed watched rollouts, from the end of the first of those on."""
        ids, following = self._ids or set(), list(self._unfinished)
        while following:
            ended = [state for state in rollout_states.get(conn, following) if state.ended_at is not None]
            self._unfinished.difference_update(state.id for state in ended)
            later = rollout_states.later_attempts(conn, [state.id for state in ended])
            # Several attempts may have followed since the last look, not only the newest.
            following = [rollout_id for rollout_id in later if rollout_id not in ids]
            if following:
                ids.update(following)
                self._unfinished.update(following)
                self._cursor = min(self._cursor, *(state.ended_at or 0.0 for state in ended))


async def as_events(
    changes: EventStream, keep_alive_s: float, stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield events until no more can come or the server stops, and a comment after `keep_alive_s` of silence.

    A look does not return while the store is away. The comments are still sent.
    """
    quiet_since = time.monotonic()
    looking = asyncio.create_task(changes.look())
    try:
        while not stopping():
            await asyncio.wait({looking}, timeout=_LOOK_S)
            if looking.done():
                for event_id, kind, state in looking.result():
                    data = json.dumps(state_as_json(state), ensure_ascii=False)
                    yield f"id: {event_id}\nevent: {kind}\ndata: {data}\n\n"
                    quiet_since = time.monotonic()
                if changes.over:
                    return
                await asyncio.sleep(_LOOK_S)
                looking = asyncio.create_task(changes.look())
            if time.monotonic() - quiet_since >= keep_alive_s:
                quiet_since = time.monotonic()
                yield ": still here\n\n"
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def _seen(key: Key, after: Key) -> bool:
    order = {"submitted": 0, "started": 1, "ended": 2}
    return (key[0], key[1], order.get(key[2], 3)) <= (after[0], after[1], order.get(after[2], 3))
