"""Server-sent events of an engine's answer, and the refusal instead of one."""

from collections.abc import AsyncGenerator
from typing import Any

import orjson

from harnessgym.errors import UpstreamError, UpstreamLost
from proxies.http_client import Response


async def check(response: Response) -> None:
    """Raises `UpstreamLost` for the statuses of an engine that is going away, `UpstreamError` for others
    but 200.
    """
    if response.status == 200:
        return
    text = (await response.body()).decode(errors="replace")[:2_000]
    kind = UpstreamLost if response.status in (502, 503, 504) else UpstreamError
    raise kind(f"The engine refused with status {response.status}: {text}")


async def events(response: Response) -> AsyncGenerator[dict[str, Any]]:
    """The JSON objects of a stream, up to its `[DONE]`."""
    buffer = b""
    async for piece in response.pieces():
        *whole, buffer = (buffer + piece).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: {"):
                try:
                    yield orjson.loads(event[6:])
                except orjson.JSONDecodeError as error:
                    raise UpstreamError(f"The engine sent an event that is not JSON: {error}") from error
