"""Requests to an outside engine's HTTP API."""

import asyncio
import math
from typing import Any

import httpx

from harnessgym.errors import UpstreamError, UpstreamLost, UpstreamSilent
from harnessgym.proxy_client import Closing

QUICK_S = 15.0
"""Longest time that a question or a switch may take, which loads no weights, unless the settings say
otherwise."""
_CONNECT_S = 5.0


class EngineApi(Closing):
    """Speaks JSON to the engine at `http://host:port`.

    ```python
    async with EngineApi("http://127.0.0.1:8000", timeout_s=600) as api:
        await api.ask("POST", "/pause", params={"mode": "abort"})
    ```
    """

    def __init__(
        self, address: str, *, timeout_s: float, quick_s: float = QUICK_S, alive: str = "/health"
    ) -> None:
        """`alive` is a path that the engine answers at once, also while it loads weights."""
        self.address = address
        self.quick_s = quick_s
        self._timeout_s = timeout_s
        self._alive = alive
        self._http = httpx.AsyncClient(base_url=address, trust_env=False)

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        params: dict[str, str] | None = None,
        hint: str = "",
        refusal: int = httpx.codes.OK,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The answer's JSON object; {} for an answer that is none.

        `hint` says how an engine is started that has the route; `refusal` is a status whose JSON is an answer
        too; `timeout_s` is for this request alone. Raises `UpstreamLost` when the engine does not answer or
        is going away, `UpstreamSilent` when it accepts the request and does not answer, `UpstreamError` when
        it refuses.
        """
        limit_s = min(timeout_s or math.inf, self._timeout_s)
        timeout = httpx.Timeout(limit_s, connect=_CONNECT_S)
        request = self._http.build_request(method, path, json=body, params=params, timeout=timeout)
        try:
            response = await (self._http.send(request) if limit_s <= self.quick_s else self._watched(request))
        except httpx.ReadTimeout as error:
            raise UpstreamSilent(
                f"The engine at {self.address} accepted {method} {path} and has sent nothing for "
                f"{limit_s:g} s. Is it stopped or stuck?"
            ) from error
        except httpx.HTTPError as error:
            raise UpstreamLost(
                f"The engine at {self.address} does not answer {method} {path} ({error!r}). Does it run?"
            ) from error
        text = response.text[:2_000]
        if response.status_code in (502, 503, 504):
            raise UpstreamLost(f"The engine at {self.address} cannot answer {method} {path} now: {text}")
        if response.status_code == httpx.codes.NOT_FOUND:
            start = f" Start it {hint}." if hint else ""
            raise UpstreamError(f"The engine at {self.address} has no route {method} {path}.{start}")
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        if response.status_code not in (httpx.codes.OK, refusal):
            raise UpstreamError(
                f"The engine refused {method} {path} with status {response.status_code}: {text}"
            )
        return answer if isinstance(answer, dict) else {}

    async def _watched(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request that may take minutes. Meanwhile the engine is asked whether it is there.

        Without these questions an engine that is stopped while it loads weights would hold an update lease until
        the longest limit is over, and the run would wait for it.
        """
        answering = asyncio.create_task(self._http.send(request))
        try:
            while not (await asyncio.wait({answering}, timeout=self.quick_s))[0]:
                try:
                    await self._http.get(self._alive, timeout=self.quick_s)
                except httpx.ReadTimeout:
                    if not answering.done():
                        raise UpstreamSilent(
                            f"The engine at {self.address} has answered neither {request.method} "
                            f"{request.url.path} nor GET {self._alive}, asked {self.quick_s:g} s ago. Is it "
                            "stopped or stuck?"
                        ) from None
                except httpx.HTTPError:  # the request itself will fail
                    pass
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait({answering})
        return answering.result()

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()
