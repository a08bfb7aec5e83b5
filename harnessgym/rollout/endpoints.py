"""The node over HTTP: any trainer can submit rollouts, watch them, fetch their trajectories and cancel them.

    POST   /rollouts                  a task, a harness, how many            -> ids
    GET    /rollouts                  those of the run, by condition
    GET    /rollouts/events           changes of all, or of ?rollout=ID ..., as server-sent events
    GET    /rollouts/{id}             status, rewards, cause, latencies
    GET    /rollouts/{id}/trajectory  token ids, mask, logprobs, versions: the rows that trainers get
    DELETE /rollouts/{id}             cancel
    GET    /health                    stages and counts, and whether the store answers

Every request carries `Authorization: Bearer KEY`. Responses come from the store, so any node of a run can
give them. FastAPI is imported only here.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from typing import Annotated, Any

import anyio.to_thread
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy import Connection

from harnessgym.errors import ConfigError, HarnessGymError, StoreError, StoreUnavailable
from harnessgym.registry import load
from harnessgym.rollout.event_stream import EventStream, as_events, parse_event_id, state_as_json
from harnessgym.rollout.node import Node
from harnessgym.rollout.submission import TAGS, InlineTask, NamedTask, Submission
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.sandbox import needs, require
from harnessgym.store import TraceStore, clock, policies, requests, rollout_states, rollouts, runs, workers
from harnessgym.store.rollout_states import RolloutState
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task
from harnessgym.tasks.payload import payload_of
from harnessgym.tasks.source import task_set
from harnessgym.traces.trajectories import Trajectory, rows_of

_INLINE = "inline"
"""The task set recorded for tasks that came with a request."""
_KEEP_ALIVE_S = 10.0
_HEALTH_S = 2.0
"""How long `GET /health` waits for the store."""
_MOST_LISTED = 1_000
_LAST_PORT = 65_535


class Endpoints:
    """The routes of one node."""

    def __init__(
        self, node: Node, sandbox: str, policy: str, key: str, keep_alive_s: float = _KEEP_ALIVE_S
    ) -> None:
        """`sandbox` and `policy` are the store's names of the backend and the policy."""
        self.node = node
        self.sandbox = sandbox
        self.policy = policy
        self.key = key
        self.keep_alive_s = keep_alive_s
        self.stopping = False
        self._counting: asyncio.Task[tuple[str | None, dict[str, int] | None]] | None = None

    @property
    def store(self) -> TraceStore:
        """The node's trace store."""
        return self.node.store

    @property
    def run_id(self) -> str:
        """The node's run. Everything submitted here belongs to it."""
        return self.node.plan.run_id

    @cached_property
    def app(self) -> FastAPI:
        """The FastAPI application."""
        app = FastAPI(title="HarnessGym rollouts", dependencies=[Depends(self._authorise)], openapi_url=None)
        app.add_api_route("/rollouts", self.submit, methods=["POST"], status_code=201)
        app.add_api_route("/rollouts", self.listing, methods=["GET"])
        app.add_api_route("/rollouts/events", self.events, methods=["GET"])
        app.add_api_route("/rollouts/{rollout_id}", self.one, methods=["GET"])
        app.add_api_route("/rollouts/{rollout_id}/trajectory", self.trajectory, methods=["GET"])
        app.add_api_route("/rollouts/{rollout_id}", self.cancel, methods=["DELETE"])
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_exception_handler(RequestValidationError, _teach)
        app.add_exception_handler(HarnessGymError, _refuse)
        return app

    async def submit(self, wanted: Submission) -> dict[str, Any]:
        """Submit a group of rollouts of one task."""
        name, task, payload = await anyio.to_thread.run_sync(self._task, wanted.task)
        require(self.node.pipeline.backend.capabilities, needs(task))
        await anyio.to_thread.run_sync(load, "grader", task.grader)
        harness = self._harness(wanted.harness)

        def write(conn: Connection) -> requests.Requested:
            serving = [
                worker.version for worker in workers.engines_of(conn, self.run_id) if worker.state == "ready"
            ]
            spec = GroupSpec(
                run_id=self.run_id,
                task_id=requests.add_task(conn, name, task.id, task.split, payload),
                policy_id=policies.register(conn, self.run_id, self.policy),
                purpose=requests.PURPOSE,
                ordinal=0,
                submitted_version=min(serving, default=0),
                sampling=wanted.sampling.model_dump(mode="json"),
                harnesses=(harness,) * wanted.samples,
                sandbox=self.sandbox,
                seeds=tuple(_seed(wanted.seed, task.id, slot) for slot in range(wanted.samples)),
            )
            return requests.submit(conn, spec, wanted.group)

        made = await self.store.awrite(write)
        return {"group": made.group_id, "rollouts": list(made.rollout_ids), "new": made.new}

    async def listing(
        self,
        status: str | None = None,
        group: str | None = None,
        purpose: str | None = None,
        harness: str | None = None,
        after: str = "",
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    ) -> dict[str, Any]:
        """List rollouts by condition, oldest first. Pass `next` as `after` to get the following page."""
        query = partial(
            rollout_states.listing,
            run_id=self.run_id,
            status=status,
            group_id=group,
            purpose=purpose,
            harness=harness,
            after=after,
            limit=limit,
        )
        states: Sequence[RolloutState] = await self.store.aread(query)
        return {
            "rollouts": [state_as_json(state) for state in states],
            "next": states[-1].id if len(states) == limit else None,
        }

    async def one(self, rollout_id: str) -> dict[str, Any]:
        """One rollout's state."""
        return state_as_json(await self._state(rollout_id))

    async def trajectory(self, rollout_id: str) -> Response:
        """The trajectory of a rollout that has ended; 409 while it runs."""
        state = await self._state(rollout_id)
        if state.status in ("pending", "running"):
            raise HTTPException(
                409,
                f"The rollout {rollout_id} is {state.status}: it has no trajectory yet. Watch it until it "
                "ends.",
            )
        trajectory = await self.store.aread(lambda conn: rows_of(conn, rollout_id, group_id=state.group_id))
        own = {"rollout": rollout_id, "verdict": state.verdict, "rewards": state.rewards}
        text = await anyio.to_thread.run_sync(
            lambda: json.dumps({**own, **_trajectory(trajectory)}, allow_nan=False)
        )
        return Response(
            text, media_type="application/json"
        )  # FastAPI would look at every token on the event loop

    async def cancel(self, rollout_id: str) -> dict[str, Any]:
        """Cancel the newest attempt at a rollout. One that has ended does not change."""
        await self._state(rollout_id)
        newest = await self.store.aread(lambda conn: rollout_states.latest(conn, rollout_id))
        ended = await self.store.awrite(
            lambda conn: rollouts.cancel(conn, [str(newest)], "Cancelled over HTTP.")
        )
        return {**state_as_json(await self._state(str(newest))), "cancelled_now": bool(ended)}

    async def events(
        self,
        rollout: Annotated[list[str] | None, Query()] = None,
        since: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        """Stream changes: all those of named rollouts, else those from now or `since` (Unix seconds) on."""
        for rollout_id in rollout or ():
            await self._state(rollout_id)
        after = parse_event_id(last_event_id) if last_event_id else None
        begin = 0.0 if rollout else await self.store.aread(clock.read)
        begin = begin if since is None else since
        changes = EventStream(self.store, self.run_id, rollout, after, begin)
        stream = as_events(changes, self.keep_alive_s, lambda: self.stopping)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def health(self) -> dict[str, Any]:
        """The node's state. `status` and `rollouts` are null while the store does not answer."""
        # One read at a time: clients that poll while the store is away must not occupy every reader thread.
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._counts())
        counting = self._counting
        await asyncio.wait({counting}, timeout=_HEALTH_S)
        status, counts = counting.result() if counting.done() else (None, None)
        return {
            "run": self.run_id,
            "status": status,
            "store_answers": counts is not None,
            "stages": [asdict(stage) for stage in self.node.stages.counts()],
            "claimed": len(self.node.running),
            "sandboxes": self.node.pressure.opened,
            "rollouts": counts,
            "harnesses": sorted(self.node.pipeline.harnesses),
        }

    async def _counts(self) -> tuple[str | None, dict[str, int] | None]:
        """The run's status and its rollouts counted by status; None for both if the store is away."""

        def read(conn: Connection) -> tuple[str | None, dict[str, int]]:
            run = runs.get(conn, self.run_id)
            return None if run is None else run.status, rollouts.rollout_states(conn, self.run_id)

        try:
            return await self.store.aread(read)
        except StoreUnavailable:
            return None, None

    async def _authorise(self, request: Request) -> None:
        # Constant time: the comparison must not tell how much of a guessed key is right. As bytes, because
        # `compare_digest` refuses text that is not ASCII.
        header = request.headers.get("authorization", "")
        if not hmac.compare_digest(header.encode(), f"Bearer {self.key}".encode()):
            detail = "Give the key as `Authorization: Bearer KEY`; it is in the run folder's endpoints.json."
            raise HTTPException(401, detail, {"www-authenticate": "Bearer"})

    async def _state(self, rollout_id: str) -> RolloutState:
        states = await self.store.aread(lambda conn: rollout_states.get(conn, [rollout_id]))
        if not states or states[0].run_id != self.run_id:
            raise HTTPException(
                404,
                f"There is no rollout {rollout_id!r} in this run. GET /rollouts lists those that there are.",
            )
        return states[0]

    def _task(self, wanted: NamedTask | InlineTask) -> tuple[str, Task, dict[str, Any]]:
        """The name of the task set, the task, and the task as JSON values."""
        if isinstance(wanted, InlineTask):
            return _INLINE, (inline := wanted.task()), payload_of(inline)
        tasks = task_set(wanted.set)
        for split in ("train", "test"):
            for task in tasks.tasks(split):
                if task.id == wanted.id:
                    return wanted.set, task, payload_of(task)
        some = ", ".join(task.id for task in tasks.tasks("train")[:3])
        raise HTTPException(
            404, f"The task set {wanted.set!r} has no task {wanted.id!r}. It has, for example: {some}."
        )

    def _harness(self, name: str | None) -> str:
        known = sorted(self.node.pipeline.harnesses)
        if name is None and len(known) == 1:
            return known[0]
        if name not in known:
            raise HTTPException(
                422, f"harness: the run has no harness {name!r}. Give one of: {', '.join(known)}."
            )
        return name


async def _teach(request: Request, error: Exception) -> JSONResponse:
    """422 with every problem: where it is and what was given."""
    assert isinstance(error, RequestValidationError)
    problems = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"] if part not in ("body", *TAGS)) or "body"
        unknown = problem["type"] == "extra_forbidden"
        message = (
            "there is no such field." if unknown else f"{problem['msg']} (got {problem.get('input')!r:.200})."
        )
        problems.append(f"{where}: {message}")
    detail = f"{request.method} {request.url.path} cannot be done: {'; '.join(problems)}"
    return JSONResponse({"detail": detail, "problems": problems}, 422)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """One of our own errors: 409 from the store, else 422."""
    status = 409 if isinstance(error, StoreError) else 422
    return JSONResponse({"detail": f"{request.method} {request.url.path} cannot be done: {error}"}, status)


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    rows = [
        {
            "ids": row.ids.tolist(),
            "mask": row.mask.tolist(),
            "logprobs": [round(float(value), 7) for value in row.logprobs],
            "versions": row.versions.tolist(),
            "turns": [{"start": turn.start, "end": turn.end, "call": turn.call_id} for turn in row.turns],
        }
        for row in trajectory.rows
    ]
    account = {
        "sampled": trajectory.sampled,
        "trained": trajectory.trained,
        "incomplete": trajectory.incomplete,
    }
    return {"rows": rows, "exclusions": [asdict(item) for item in trajectory.exclusions], **account}


def _seed(seed: int, task: str, slot: int) -> int:
    digest = hashlib.blake2b(json.dumps([seed, task, slot]).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


class _Server(uvicorn.Server):
    """Leaves signal handling to the node."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(endpoints: Endpoints, address: str, folder: RunFolder | None = None) -> AsyncIterator[str]:
    """Serve at `HOST:PORT` (port 0 takes a free one) and yield the URL.

    With a folder, the URL and the key are written to its `endpoints.json` while the server runs. Raises
    `ConfigError` if the address cannot be bound.
    """
    listener = _listen(address)
    host, port = listener.getsockname()[:2]
    url = f"http://{host}:{port}"
    config = uvicorn.Config(
        endpoints.app,
        lifespan="off",
        access_log=False,
        log_level="warning",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        # The URL is published only once the server accepts connections. If it failed to start, its error is
        # raised here.
        while not server.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(0.005)
        if folder is not None:
            write_json(folder.root / "endpoints.json", {"url": url, "key": endpoints.key}, mode=0o600)
        yield url
    finally:
        endpoints.stopping = server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()
        if folder is not None:
            with contextlib.suppress(OSError):
                (folder.root / "endpoints.json").unlink()


def new_key() -> str:
    """A new random key of 192 bits."""
    return secrets.token_urlsafe(24)


def _listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError(f"{address!r} is no address to serve at: write HOST:PORT, e.g. 127.0.0.1:8200.")
    try:
        return socket.create_server((host or "127.0.0.1", int(port)), backlog=128)
    except OSError as error:
        raise ConfigError(
            f"Cannot serve rollouts at {address}: {error}. Choose another address, or port 0."
        ) from error
