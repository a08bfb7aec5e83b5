"""The control routes: open and seal sessions, register, drain and undrain workers, read statistics.

They have a key and a socket of their own. Neither is ever mounted into a sandbox: whoever holds them decides
what is recorded.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import Connection
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from harnessgym.errors import HarnessGymError, ProxyError, StoreUnavailable
from harnessgym.message import Sampling
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import sessions, workers
from harnessgym.store.workers import WorkerRow, WorkerState
from harnessgym.traces.orchestration.rows import OrchestrationRows
from proxies import orchestration
from proxies.otlp.receiver import SpanIntake
from proxies.recorder import Recorder
from proxies.relay import Relay
from proxies.session import Session, SessionTable
from proxies.upstreams.parked import Parking
from proxies.workers import WorkerTable

Body = TypeVar("Body", bound=BaseModel)


class OpenSession(BaseModel, extra="forbid"):
    """Open a session for a rollout."""

    rollout_id: str
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Fields of `message.Sampling`."""
    history: Literal["keep", "template"] = "keep"
    limits: dict[str, Any] = Field(default_factory=dict)
    """turns: calls at most. tokens: sampled tokens at most. wall_s: seconds from now on. min_version: the
    oldest policy version that may answer. min_versions and pins: the oldest and the only version of each
    further policy that may answer, by policy id."""
    options: SessionOptions = SessionOptions()
    version_pin: int | None = None
    min_version: int | None = None
    """Shorthand for `limits.min_version`."""


class Seal(BaseModel, extra="forbid"):
    """Refuse further calls of a session."""

    grace_s: float = 1.0
    """How long calls in flight may still run."""


class RegisterWorker(BaseModel, extra="forbid"):
    """Add or change an engine worker."""

    id: str
    address: str
    version: int
    state: WorkerState = "ready"
    kind: str = "embedded"
    policy_id: str | None = None
    """The policy that it serves; the run's first policy if not given."""


class DrainRequest(BaseModel, extra="forbid"):
    """Stop sending calls to a worker."""

    timeout_s: float = 5.0
    """How long to wait for its calls in flight."""


class Undrain(BaseModel, extra="forbid"):
    """Send calls to a worker again."""

    version: int


class Control:
    """The control API over a proxy's parts."""

    def __init__(
        self,
        key: str,
        run_id: str,
        table: SessionTable,
        pool: WorkerTable,
        relay: Relay,
        recorder: Recorder,
        spans: SpanIntake,
    ) -> None:
        self._key = key
        self._run_id = run_id
        self._spans = spans
        self._sessions = table
        self._workers = pool
        self._relay = relay
        self._recorder = recorder
        self.url: str | None = None
        """Where harnesses reach the proxy over TCP, once it listens."""
        self._parking = Parking(table, pool.parked)
        self._started = time.time()
        self._process = secrets.token_hex(8)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self._route("POST", "/control/sessions", self._open),
            self._route("POST", "/control/sessions/{id}/seal", self._seal),
            self._route("GET", "/control/sessions/{id}/pending", self._parking.pending),
            self._route("POST", "/control/sessions/{id}/answer", self._parking.answer),
            self._route("POST", "/control/workers", self._register),
            self._route("POST", "/control/workers/{id}/drain", self._drain),
            self._route("POST", "/control/workers/{id}/undrain", self._undrain),
            self._route("GET", "/control/stats", self._stats),
            self._route("GET", "/control/health", self._health),
        ]
        return Starlette(routes=routes)

    def _route(self, method: str, path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        async def guarded(request: Request) -> Response:
            key = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(key.encode(), self._key.encode()):
                return _error(401, "The control routes need the control key.")
            try:
                return await handler(request)
            except ValidationError as error:
                return _error(422, str(error))
            except StoreUnavailable as error:
                return _error(503, str(error))
            except HarnessGymError as error:
                return _error(409, str(error))

        return Route(path, guarded, methods=[method])

    async def _open(self, request: Request) -> Response:
        wanted = await _read(request, OpenSession)
        _check_sampling(wanted.sampling)
        key = f"hg-{secrets.token_urlsafe(24)}"
        limits = (
            wanted.limits
            if wanted.min_version is None
            else {**wanted.limits, "min_version": wanted.min_version}
        )
        row = await self._recorder.write(
            lambda conn: sessions.add(
                conn,
                wanted.rollout_id,
                key,
                sampling=wanted.sampling,
                history=wanted.history,
                limits=limits,
                version_pin=wanted.version_pin,
                options=wanted.options.model_dump(mode="json", exclude_unset=True),
            )
        )
        self._sessions.opened(row, key)
        return JSONResponse({"session_id": row.id, "key": key})

    async def _seal(self, request: Request) -> Response:
        wanted = await _read(request, Seal)
        session = await self._sessions.by_id(request.path_params["id"])
        if session is None:
            return _error(404, f"There is no session {request.path_params['id']}.")
        # In this order: no call begins after `sealed` is set, the calls in flight record their outcome, and
        # only then the store refuses everything else of the session.
        session.sealed = True
        self._workers.parked.wake()
        await _end_calls(session, wanted.grace_s)
        count, tokens = await self._recorder.write(
            partial(_seal, session_id=session.row.id, rows=session.tracker.sealed())
        )
        await self._spans.settle(session)
        self._sessions.forget(session)
        return JSONResponse({"calls": count, "tokens": tokens})

    async def _register(self, request: Request) -> Response:
        wanted = await _read(request, RegisterWorker)
        row = WorkerRow(
            wanted.id,
            self._run_id,
            wanted.kind,
            wanted.address,
            wanted.version,
            wanted.state,
            wanted.policy_id,
        )
        known = await self._workers.put(row)
        await self._recorder.write(lambda conn: workers.upsert(conn, known))
        return JSONResponse({})

    async def _drain(self, request: Request) -> Response:
        wanted = await _read(request, DrainRequest)
        worker_id = request.path_params["id"]
        # The table first, so that no call is sent to the worker while the store is written.
        row = await self._workers.set_state(worker_id, "draining")
        if row is None:
            return _error(404, f"There is no worker {worker_id}.")
        await self._recorder.write(lambda conn: workers.drain(conn, worker_id))
        return JSONResponse({"in_flight": await self._workers.idle(worker_id, wanted.timeout_s)})

    async def _undrain(self, request: Request) -> Response:
        wanted = await _read(request, Undrain)
        worker_id = request.path_params["id"]
        row = await self._workers.set_state(worker_id, "ready", wanted.version)
        if row is None:
            return _error(404, f"There is no worker {worker_id}.")
        await self._recorder.write(lambda conn: workers.upsert(conn, row))
        return JSONResponse({})

    async def _stats(self, _: Request) -> Response:
        table = [
            {
                "id": worker.row.id,
                "address": worker.row.address,
                "version": worker.row.version,
                "policy_id": worker.row.policy_id,
                "state": worker.row.state,
                "load": worker.load,
                "suspect": worker.suspect,
            }
            for worker in self._workers.all()
        ]
        counts = {
            "calls": self._relay.runner.started,
            "in_flight": self._relay.runner.in_flight,
            "tokens": self._relay.runner.tokens,
        }
        uptime = round(time.time() - self._started, 3)
        return JSONResponse(
            {"url": self.url, "sessions": len(self._sessions), **counts, "uptime_s": uptime, "workers": table}
        )

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "process": self._process})


def _seal(conn: Connection, session_id: str, rows: OrchestrationRows) -> tuple[int, int]:
    """Seal a session and add the orchestration rows of its end. Returns its number of calls and of sampled
    tokens.
    """
    row = sessions.get(conn, session_id)
    if row is not None and not row.sealed:
        orchestration.write(conn, rows)
    return sessions.seal(conn, session_id), sessions.sampled_tokens(conn, session_id)


def _check_sampling(sampling: dict[str, Any]) -> None:
    unknown = set(sampling) - {field.name for field in fields(Sampling)}
    if unknown:
        raise ProxyError(f"Unknown sampling fields: {', '.join(sorted(unknown))}.")


async def _end_calls(session: Session, grace_s: float) -> None:
    """Interrupt the calls that are still in flight after the grace time; returns when all are recorded."""
    tasks = [call.task for call in session.live.values() if call.task is not None]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=grace_s)
    for call in list(session.live.values()):
        call.interrupt()
    if late:
        await asyncio.wait(late)


async def _read(request: Request, model: type[Body]) -> Body:
    body = await request.body()
    return model.model_validate_json(body or b"{}")


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)
