"""Client of a proxy's control routes, for nodes and weight agents.

A proxy or its store may restart at any moment. So a request that gets no connection, loses it or gets a 503
is retried for a while. All routes are safe to repeat; opening a session twice only leaves an unused session.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from harnessgym.errors import ProxyError
from harnessgym.run_config.session import SessionOptions
from harnessgym.store.workers import WorkerState


def trust_for(url: str) -> ssl.SSLContext | bool:
    """The `verify` of an httpx client that asks this address only.

    httpx loads the machine's certificates for every client, which takes 50 ms. An address without TLS needs
    none: its client trusts nobody, so that a redirection to https fails.
    """
    return True if url.lower().startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Closing:
    """Makes a class with `aclose` an async context manager."""

    async def aclose(self) -> None:
        """Release what is open."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


_LOG = logging.getLogger("harnessgym.control")
_RETRY_S = 30.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session and its key."""

    session_id: str
    key: str


@dataclass(frozen=True, slots=True)
class SealedSession:
    """Counts of a sealed session."""

    calls: int
    tokens: int
    """Recorded sampled tokens."""


class ControlClient(Closing):
    """Client of the control listener at `http://host:port` or `unix:/path`.

    ```python
    async with ControlClient(url, key) as control:
        session = await control.open_session(rollout_id, sampling={"temperature": 1.0})
    ```
    """

    def __init__(self, url: str, key: str, *, retry_s: float = _RETRY_S) -> None:
        self._url = url
        self._retry_s = retry_s
        socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._http = httpx.AsyncClient(
            base_url="http://control" if socket else url,
            transport=httpx.AsyncHTTPTransport(uds=socket, verify=trust_for(url)),
            headers={"authorization": f"Bearer {key}"},
            timeout=30.0,
            trust_env=False,
        )

    async def open_session(
        self,
        rollout_id: str,
        *,
        sampling: dict[str, Any] | None = None,
        history: str = "keep",
        limits: dict[str, Any] | None = None,
        version_pin: int | None = None,
        min_version: int | None = None,
        options: SessionOptions | None = None,
    ) -> OpenedSession:
        """Open a session. `sampling` has fields of `message.Sampling`; `limits["turns"]` bounds its calls."""
        wanted = {
            "rollout_id": rollout_id,
            "sampling": sampling or {},
            "history": history,
            "limits": limits or {},
            "version_pin": version_pin,
            "min_version": min_version,
            "options": {} if options is None else options.model_dump(mode="json", exclude_unset=True),
        }
        return OpenedSession(**await self._ask("POST", "/control/sessions", wanted))

    async def seal(self, session_id: str, *, grace_s: float = 1.0) -> SealedSession:
        """Refuse further calls. Calls in flight have `grace_s` to finish and are then recorded as aborted."""
        return SealedSession(
            **await self._ask(
                "POST", f"/control/sessions/{session_id}/seal", {"grace_s": grace_s}, wait_s=grace_s
            )
        )

    async def pending(
        self, session_id: str, *, timeout_s: float = 20.0, after: int | None = None
    ) -> dict[str, Any]:
        """Wait for a session's next parked call. `pending` is None after the timeout or once it is sealed."""
        query = f"timeout_s={timeout_s}" if after is None else f"timeout_s={timeout_s}&after={after}"
        return await self._ask("GET", f"/control/sessions/{session_id}/pending?{query}", wait_s=timeout_s)

    async def answer(self, session_id: str, call_id: str, **answer: Any) -> None:
        """Answer a parked call with `text=`, `message=` or `token_ids=`; see
        `proxies.upstreams.parked.PostedAnswer`.

        Raises `ProxyError` if the call has ended, or if the answer cannot be rendered for the policy.
        """
        await self._ask("POST", f"/control/sessions/{session_id}/answer", {"call_id": call_id, **answer})

    async def register(
        self,
        worker_id: str,
        address: str,
        version: int,
        *,
        state: WorkerState = "ready",
        kind: str = "embedded",
        policy_id: str | None = None,
    ) -> None:
        """Add or update an engine worker. It serves the run's first policy if none is given."""
        wanted = {"id": worker_id, "address": address, "version": version, "state": state, "kind": kind}
        wanted["policy_id"] = policy_id
        await self._ask("POST", "/control/workers", wanted)

    async def drain(self, worker_id: str, timeout_s: float = 5.0) -> int:
        """Send a worker no new calls and wait for those in flight. Returns how many are left at the timeout.

        A proxy that does not know the worker sends it no calls, so none are left.
        """
        path = f"/control/workers/{worker_id}/drain"
        wanted = {"timeout_s": timeout_s}
        answer = await self._ask("POST", path, wanted, wait_s=timeout_s, absent={"in_flight": 0})
        return int(answer["in_flight"])

    async def undrain(self, worker_id: str, version: int) -> None:
        """Resume sending calls to a worker, which now serves `version`."""
        await self._ask("POST", f"/control/workers/{worker_id}/undrain", {"version": version})

    async def stats(self) -> dict[str, Any]:
        """Counts of sessions, calls and tokens, and the list of workers."""
        return await self._ask("GET", "/control/stats")

    async def process(self, *, timeout_s: float) -> str | None:
        """An id of the proxy's process, which a restart changes; None if it does not answer in time."""
        try:
            response = await self._http.get("/control/health", timeout=timeout_s)
            return str(response.json()["process"]) if response.is_success else None
        except httpx.TransportError:
            return None

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        wait_s: float = 0.0,
        absent: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The JSON of the response. `absent`, if given, is returned for a 404."""
        deadline = asyncio.get_running_loop().time() + self._retry_s
        silent = False
        while True:
            try:
                # Routes that wait on the server's side need their own time on top of the timeout.
                response = await self._http.request(method, path, json=body, timeout=30.0 + wait_s)
                if (
                    response.status_code != httpx.codes.SERVICE_UNAVAILABLE
                    or asyncio.get_running_loop().time() > deadline
                ):
                    break
            except httpx.TransportError as error:
                if asyncio.get_running_loop().time() > deadline:
                    hint = "Is the proxy running?"
                    raise ProxyError(
                        f"The proxy's control API at {self._url} does not answer ({error!r}). {hint}"
                    ) from error
                if not silent:
                    _LOG.warning(
                        "The proxy's control API at %s cannot be used (%r); trying again.", self._url, error
                    )
                silent = True
            await asyncio.sleep(_PAUSE_S)
        if response.status_code == httpx.codes.NOT_FOUND and absent is not None:
            return absent
        if response.status_code != httpx.codes.OK:
            raise ProxyError(
                f"The proxy refused {method} {path} with status {response.status_code}: {response.text[:500]}"
            )
        answer: dict[str, Any] = response.json()
        return answer
