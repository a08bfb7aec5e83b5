"""The ASGI application that harnesses reach: every dialect's routes, with the session's key as API key or
path prefix.

It uses no web framework: the framework's routing and request objects cost more than everything else that the
proxy does with a request.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

from harnessgym.errors import StoreError
from harnessgym.store.events import EventRow
from proxies.connection import BodyTooLarge, BodyTooSlow, Connection, Disconnected
from proxies.content_encoding import UnknownEncoding, decoded
from proxies.dialect import Dialect, ModelRequest, Problem, Purpose, RequestProblem
from proxies.fairness import HeldRefusals, Turns
from proxies.otlp.receiver import ROUTE, SpanIntake
from proxies.previous import whole
from proxies.reading import digest_of
from proxies.recorder import Recorder
from proxies.relay import IncomingRequest, Relay
from proxies.responder import Responder
from proxies.session import Session, SessionTable

_ROUTES = re.compile(r"(?:/(?P<api>v1|v1beta|openai/v1))?/models(?:/(?P<name>.+))?")


@dataclass(frozen=True, slots=True)
class ModelCards:
    """Answers `GET` of `/v1/models`, `/models`, `/v1beta/models`, Azure's `/openai/v1/models`, and of the
    paths below them.
    """

    models: tuple[str, ...]
    max_length: int
    """Prompt and completion together, in tokens."""
    created: int = field(default_factory=lambda: int(time()))

    def answer(self, path: str, *, google: bool) -> bytes | None:
        """The body for a path, in Google's format or the common one; None if the path lists no models."""
        match = _ROUTES.fullmatch(path)
        if match is None:
            return None
        google = google or match["api"] == "v1beta"
        card = self._google if google else self._card
        # Harnesses look up the model name of their own configuration, so an unknown name gets the first
        # policy's card and not an error.
        if match["name"] is not None:
            return json.dumps(
                card(match["name"] if match["name"] in self.models else self.models[0])
            ).encode()
        cards = [card(model) for model in self.models]
        edges = {"has_more": False, "first_id": self.models[0], "last_id": self.models[-1]}
        return json.dumps(
            {"models": cards} if google else {"object": "list", "data": cards, **edges}
        ).encode()

    def _card(self, model: str) -> dict[str, Any]:
        """A card with the fields that OpenAI's and Anthropic's clients read."""
        card = {"id": model, "object": "model", "created": self.created, "owned_by": "harnessgym"}
        return card | {"type": "model", "display_name": model, "max_model_len": self.max_length}

    def _google(self, model: str) -> dict[str, Any]:
        return {
            "name": f"models/{model}",
            "version": "001",
            "displayName": model,
            "inputTokenLimit": self.max_length,
            "outputTokenLimit": self.max_length,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }


_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
_OPEN = 256
"""How many requests of one session may be open at a time, with those whose clients have left."""
_LARGE = 1 << 18
"""Bytes from which a body is parsed on a thread: as many take a few milliseconds."""
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class _Target:
    """A request path, taken apart."""

    key: str | None
    """The key in a `/s/<key>` prefix."""
    path: str
    """The path without that prefix."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The dialect and purpose of a route."""

    dialect: Dialect
    purpose: Purpose


class Gateway:
    """Routes harness requests to the relay."""

    def __init__(
        self,
        sessions: SessionTable,
        relay: Relay,
        recorder: Recorder,
        dialects: Sequence[Dialect],
        keepalive_s: float,
        client_wait_s: float,
        spans: SpanIntake,
    ) -> None:
        self._spans = spans
        self._sessions = sessions
        self._relay = relay
        self._recorder = recorder
        self._keepalive_s = keepalive_s
        self._client_wait_s = client_wait_s
        self._turns = Turns()
        self._held = HeldRefusals()
        self._fallback = dialects[0]
        self._dialects = dialects
        self._exact: dict[tuple[str, str], _Endpoint] = {}
        self._patterns: list[tuple[str, re.Pattern[str], _Endpoint]] = []
        for dialect in dialects:
            for route in dialect.routes:
                if "{" in route.path:
                    self._patterns.append(
                        (route.method, _compile(route.path), _Endpoint(dialect, route.purpose))
                    )
                else:
                    self._exact[route.method, route.path] = _Endpoint(dialect, route.purpose)
        self._cards = ModelCards(relay.policies.names, relay.limits.max_length)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        connection = Connection(scope, receive, send, self._client_wait_s)
        target = _target(connection.path)
        endpoint = self._find(connection.method, target.path)
        dialect = self._dialect_of(connection) if endpoint is None else endpoint.dialect
        try:
            if target.path == ROUTE and connection.method == "POST":
                await self._spans.serve(connection, target.key)
            else:
                await self._serve(connection, target, endpoint, dialect)
        except RequestProblem as refusal:
            await connection.respond(*dialect.error(refusal.problem))
        except StoreError as error:
            await connection.respond(*dialect.error(Problem("unavailable", str(error), retry_after_s=1.0)))
        except Disconnected:
            pass

    async def _serve(
        self, connection: Connection, target: _Target, endpoint: _Endpoint | None, dialect: Dialect
    ) -> None:
        if connection.headers.get("upgrade", "").lower() == "websocket":
            return await connection.respond(426, {"upgrade": "HTTP/1.1", **_JSON}, b"{}")
        if connection.method == "HEAD" and target.path in ("", "/"):
            return await connection.respond(200, _JSON, b"")
        headers = {**connection.headers, ":path": target.path, ":query": connection.query.decode("latin-1")}
        session = await self._session(target.key or dialect.secret(headers))
        try:
            await self._serve_session(connection, target, endpoint, session, headers)
        except RequestProblem as refusal:
            self._refused(session, target, refusal.problem)
            # The request is not open any more, so a refusal that is held takes nobody's room.
            if refusal.problem.kind == "overloaded" or refusal.problem.limit == "refusals":
                connection.last = not await self._held.wait(session.row.id)
            # What is left of a slow body is not waited for.
            elif refusal.problem.kind == "too_slow":
                connection.last = True
            raise

    def _check_room(self, session: Session) -> None:
        """Raises `RequestProblem` for one request too many, before any of it is read."""
        # A call runs on for a while when its client has left, so it counts: clients that leave at once must
        # not fill the proxy.
        crowded = session.requests + len(session.live) > _OPEN
        if crowded and session.requests + session.left > _OPEN:
            detail = f"This session has {_OPEN} requests open. Wait until some of them are answered."
            raise RequestProblem(Problem("overloaded", detail, retry_after_s=1.0))
        if session.refusals >= session.most_refusals:
            detail = f"This session's limit of {session.most_refusals} refused requests is reached."
            raise RequestProblem(Problem("limit", detail, limit="refusals"))

    async def _serve_session(
        self,
        connection: Connection,
        target: _Target,
        endpoint: _Endpoint | None,
        session: Session,
        headers: Mapping[str, str],
    ) -> None:
        session.requests += 1
        try:
            self._check_room(session)
            with self._relay.slots.request(session.row.id):
                await self._turns.take(session.row.id)
                if endpoint is None:
                    await self._other(connection, target, headers)
                else:
                    await self._call(connection, target, endpoint, session, headers)
        finally:
            session.requests -= 1

    async def _other(self, connection: Connection, target: _Target, headers: Mapping[str, str]) -> None:
        """Answer a path that no dialect has."""
        google = "x-goog-api-key" in headers
        cards = self._cards.answer(target.path, google=google) if connection.method == "GET" else None
        if cards is None:
            raise RequestProblem(Problem("not_found", f"There is no {connection.method} {target.path} here."))
        await connection.respond(200, _JSON, cards)

    async def _call(
        self,
        connection: Connection,
        target: _Target,
        endpoint: _Endpoint,
        session: Session,
        headers: Mapping[str, str],
    ) -> None:
        dialect = endpoint.dialect
        body, request = await self._read(session, dialect, await self._body(connection), headers)
        if request.refers_to or request.previous is not None:
            request = await whole(
                request,
                lambda call_id: self._sessions.earlier(
                    session, call_id, lambda stored: dialect.parse(stored, headers)
                ),
            )
        if endpoint.purpose == "count":
            await connection.respond(200, _JSON, dialect.count(await self._relay.count(session, request)))
            return
        route = target.path.encode() + b"?" + connection.query
        # The digest tells retries from new requests. Some clients write a retry's JSON differently; their
        # dialects give an identity that both have in common.
        content = body if request.identity is None else request.identity.encode("utf-8", "surrogatepass")
        digest = digest_of(route + b"\n" + digest_of(content).encode())
        retry = connection.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        calls = await self._relay.calls(
            session, IncomingRequest(dialect.name, request, body, digest, dialect.tool_call_prefix, retry)
        )
        responder = Responder(connection, dialect, calls, self._recorder, self._keepalive_s)
        await responder.run(self._relay.limits.grace_s)

    async def _read(
        self, session: Session, dialect: Dialect, data: bytes, headers: Mapping[str, str]
    ) -> tuple[bytes, ModelRequest]:
        """The body, parsed incrementally where possible, and the request in it."""
        reader = session.reader(dialect.name)

        def read() -> tuple[bytes, ModelRequest]:
            body = reader.look(data)
            return body, dialect.parse(body, headers)

        body, request = await self._relay.threads.run(session.row.id, read) if len(data) > _LARGE else read()
        reader.remember(body)
        return body, request

    async def _body(self, connection: Connection) -> bytes:
        limit = self._relay.limits.max_body
        try:
            return decoded(
                await connection.body(limit), connection.headers.get("content-encoding", ""), limit
            )
        except UnknownEncoding as error:
            detail = f"Content-Encoding {error.name!r} is not supported. Send the body as it is, or use gzip."
            raise RequestProblem(Problem("unsupported", detail)) from None
        except ValueError as error:
            raise RequestProblem(
                Problem("malformed", f"The request body cannot be decompressed: {error}.")
            ) from None
        except BodyTooLarge:
            raise RequestProblem(
                Problem("too_large", f"The request body has more than {limit:,} bytes.")
            ) from None
        except BodyTooSlow:
            detail = f"The request body did not arrive within {self._client_wait_s:g} seconds."
            raise RequestProblem(Problem("too_slow", detail)) from None

    def _refused(self, session: Session, target: _Target, problem: Problem) -> None:
        """Charge a refused request to the session, and record it."""
        if session.refuse(problem.kind):
            details = {
                "session_id": session.row.id,
                "path": target.path,
                "problem": problem.kind,
                "limit": problem.limit,
                "message": problem.message[:500],
            }
            self._recorder.add_event(EventRow(session.row.rollout_id, "refused_request", details))

    async def _session(self, key: str | None) -> Session:
        """Raises `RequestProblem` unless the key opens a session."""
        session = await self._sessions.by_key(key) if key else None
        if session is None:
            raise RequestProblem(
                Problem("unknown_key", "This key opens no session. Use the key that came with the endpoint.")
            )
        if session.sealed:
            raise RequestProblem(
                Problem("sealed", "This session is sealed: its rollout has ended. Do not retry.")
            )
        return session

    def _find(self, method: str, path: str) -> _Endpoint | None:
        endpoint = self._exact.get((method, path))
        if endpoint is not None:
            return endpoint
        matching = (
            endpoint
            for route_method, pattern, endpoint in self._patterns
            if route_method == method and pattern.fullmatch(path)
        )
        return next(matching, None)

    def _dialect_of(self, connection: Connection) -> Dialect:
        """The dialect in which to answer a path that no dialect has: the one whose headers the client sends,
        or the one that finds its key.
        """
        for dialect in self._dialects:
            if any(name in connection.headers for name in dialect.marks):
                return dialect
        for dialect in self._dialects:
            if any(name in connection.headers for name in _KEY_HEADERS) and dialect.secret(
                connection.headers
            ):
                return dialect
        return self._fallback


def _target(path: str) -> _Target:
    if path.startswith("/s/"):
        key, slash, rest = path[3:].partition("/")
        return _Target(unquote(key), slash + rest)
    return _Target(None, path)


def _compile(path: str) -> re.Pattern[str]:
    """A pattern for a route's path; `{model}` in it matches one path segment."""
    return re.compile(
        "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{\w+\})", path))
    )
