"""Clients of a proxy process that is killed under them: they ask again as SDKs do, and remember every answer they got."""

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import httpx

from harnessgym.rollout.control import OpenedSession

_ROOT = Path(__file__).parents[2]
POLICY = _ROOT / "environments/lookup/policy"
KEY = "control-key"
_PAUSE_S = 0.05


class ProxyProcess:
    """`harnessgym proxy`, its listening sockets held here: connections queue while it is dead."""

    def __init__(self, store: str, run_id: str) -> None:
        self._harness, self._control = (socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(2))
        self.url, self.control_url = (f"http://127.0.0.1:{held.getsockname()[1]}" for held in (self._harness, self._control))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed with the rest
        settings = {"store": store, "run_id": run_id, "policy": POLICY, "control_key": KEY, "max_length": 30_000}
        settings |= {"fd": self._harness.fileno(), "control_fd": self._control.fileno()}
        self._command = [sys.executable, "-m", "harnessgym", "proxy"]
        self._command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting until it serves."""
        fds = (self._harness.fileno(), self._control.fileno())
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, pass_fds=fds, cwd=_ROOT)

    def end(self, how: signal.Signals) -> int:
        """End it. Returns its status."""
        assert self._process is not None
        self._process.send_signal(how)
        return self._process.wait(30)

    def said(self) -> str:
        """What it printed."""
        self._log.seek(0)
        return self._log.read().decode()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end(signal.SIGKILL)
        for held in (self._harness, self._control, self._log):
            held.close()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An answer that a client got whole."""

    session_id: str
    call_id: str
    text: str


@dataclass
class Talker:
    """One conversation, turn after turn."""

    http: httpx.AsyncClient
    url: str
    session: OpenedSession
    got: list[Acknowledged] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """How often it was told to come back, by status, or lost its connection."""
    _messages: list[dict[str, str]] = field(default_factory=list)

    async def talk(self, until: asyncio.Event) -> None:
        """Ask until told to stop; the last answer is waited for."""
        while not until.is_set():
            self._messages.append({"role": "user", "content": f"Turn {len(self.got)}."})
            said = await self._answer()
            message: dict[str, str] = said["choices"][0]["message"]
            self._messages.append({"role": "assistant", "content": message["content"]})
            self.got.append(Acknowledged(self.session.session_id, said["id"][-24:], message["content"]))

    async def _answer(self) -> dict[str, Any]:
        body = json.dumps({"model": "policy", "messages": self._messages}).encode()
        place = f"{self.url}/s/{self.session.key}/v1/chat/completions"
        for attempt in itertools.count():
            headers = {"x-stainless-retry-count": str(attempt)}
            try:
                response = await self.http.post(place, content=body, headers=headers)
            except httpx.TransportError:
                self.refused["connection lost"] += 1
            else:
                if response.status_code == httpx.codes.OK:
                    return cast("dict[str, Any]", response.json())
                if response.status_code < 500 and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    raise RuntimeError(f"The proxy answered {response.status_code}, a client's own fault: {response.text}")
                self.refused[str(response.status_code)] += 1
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("counting never ends")
