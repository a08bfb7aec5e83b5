"""An own engine: a child process that serves a model folder for the time of an evaluation."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from harnessgym.errors import HarnessGymError, PolicyError
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.sockets import url_of

_RESTARTS = 5
_LOOK_S = 0.1
_ANSWER_S = 2.0
_NAME = "engine"


class OwnEngine:
    """The child process; usable while the context of `own_engine` is open."""

    def __init__(self, url: str, children: Children) -> None:
        self.url = url
        self._children = children

    def revive(self) -> None:
        """Restart it if it has ended or hangs; connections queue meanwhile.

        Raises `HarnessGymError` if it ends again and again.
        """
        self._children.revive()

    async def ready(self) -> None:
        """Wait until it serves, however long the model loads. Raises `PolicyError` if it ends first."""
        async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False) as http:
            while not self._children.exited():
                try:
                    if (await http.get(f"{self.url}/health")).is_success:
                        return
                except httpx.TransportError:  # it loads: the socket is ours, and connections wait there
                    pass
                await asyncio.sleep(_LOOK_S)
        words = self._children.last_words(_NAME).removeprefix("harnessgym: ")
        raise PolicyError(
            f"The engine cannot serve this model: {words}\nIts log: {self._children.log_path(_NAME)}."
        )


@asynccontextmanager
async def own_engine(
    folder: RunFolder, model: Path, max_batch: int, max_length: int | None
) -> AsyncIterator[OwnEngine]:
    """Serve a model folder until the context or this process ends. Log and settings go to `folder`."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    children = Children(folder, threads, _RESTARTS)
    children.end_leftovers()
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    except OSError as error:
        raise HarnessGymError(
            f"No free port on 127.0.0.1: {error}. End what holds them and start again."
        ) from error
    with listener:
        settings = {
            "model": str(model),
            "fd": listener.fileno(),
            "max_batch": max_batch,
            "max_length": max_length,
            "threads": threads,
        }
        try:
            # This process holds the listener, so requests queue while the engine loads or restarts.
            children.start(ChildSpec(_NAME, "engine", settings, (listener.fileno(),)))
            engine = OwnEngine(url_of(listener), children)
            await engine.ready()
            yield engine
        finally:
            children.end_all()
