"""An engine as a process of its own, which a test may stop with SIGSTOP: vLLM's protocol, without a model and
without torch.

    python tests/support/engine_process.py FD PAUSE_S ANSWERS POLICY

It samples the token `TOKENS[n % len(TOKENS)]` as the n-th of a context, one at a time and `PAUSE_S` apart, so
that an answer does not depend on which engine gives which part of it. With `PAUSE_S` of "inf" it is healthy
and gives none. After `ANSWERS` answers it stops itself. It says that it serves the model folder `POLICY`.
"""

import asyncio
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Self

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

POLICY = Path(__file__).parents[2] / "environments/lookup/policy"
TOKENS = tuple(range(300, 340))


def continued(prompt_len: int, count: int) -> list[int]:
    """What every such engine samples behind a prompt."""
    return [TOKENS[at % len(TOKENS)] for at in range(prompt_len, prompt_len + count)]


class EngineProcess:
    """One of them, started and listening.

    ```python
    with EngineProcess(pause_s=0.05) as engine:
        upstream = VllmUpstream(engine.address)
        engine.signal(signal.SIGSTOP)
    ```
    """

    def __init__(self, *, pause_s: float = 0.0, answers: float = math.inf) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            given = (listener.fileno(), pause_s, answers, POLICY)
            argv = [sys.executable, __file__, *map(str, given)]
            self._process = subprocess.Popen(
                argv, pass_fds=[listener.fileno()], cwd=Path(__file__).parents[2]
            )

    def __enter__(self) -> Self:
        httpx.get(f"{self.address}/health", timeout=60.0, trust_env=False).raise_for_status()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, and for SIGSTOP wait until it is stopped."""
        os.kill(self._process.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)


def serve(fd: int, pause_s: float, answers: float, policy: str) -> None:
    """The process."""
    left = itertools.count(answers, -1)

    async def completions(request: Request) -> Response:
        body = await request.json()
        if not body.get("stream"):  # the proxy's question what an answer has, which is no call
            return JSONResponse({"choices": [{"text": ""}]})
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return StreamingResponse(events(body["prompt"], body["max_tokens"]), media_type="text/event-stream")

    async def events(prompt: Sequence[int], count: int) -> AsyncIterator[bytes]:
        for number, token in enumerate(continued(len(prompt), count), 1):
            await (asyncio.Event().wait() if math.isinf(pause_s) else asyncio.sleep(pause_s))
            choice = {"logprobs": {"token_logprobs": [-0.5]}, "token_ids": [token]}
            yield event({"choices": [choice | {"finish_reason": "length" if number == count else None}]})
        yield event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}})

    async def health(_: Request) -> Response:
        return Response()

    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "root": policy, "max_model_len": 4_096}]})

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=fd)])


def event(value: dict[str, object]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
