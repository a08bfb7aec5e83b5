"""Conversations with a real proxy whose right answers are known, so that what the store holds can be checked
token by token.

The engine's answer is a function of its prompt. Clients ask again as SDKs do, and remember every answer they
got; the proxy may be killed under them.
"""

import asyncio
import hashlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import httpx
from sqlalchemy import Connection

from harnessgym.message import Sampling
from harnessgym.proxy_client import OpenedSession
from harnessgym.store import TraceStore, calls, policies, rollouts, runs, workers
from harnessgym.store.calls import FINISHED, RecordedCall, Segment
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task
from harnessgym.tokens import TokenIds
from harnessgym.traces.verification.verify import verify
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream, logprob

_ROOT = Path(__file__).parents[2]
POLICY = _ROOT / "environments/lookup/policy"
KEY = "control-key"
KIND = f"{__name__}:Echo"
"""The worker kind under which a proxy loads the engine."""
_PAUSE_S = 0.05
_LETTERS = "abcdefghijklmnop"
_LENGTH = 12
_DELAY_S = 0.01


class Echo:
    """A worker kind. Its address is its vocabulary: 16 tokens and the one that ends an answer."""

    def __new__(cls, address: str, *, version: int) -> ScriptedUpstream:  # type: ignore[misc]
        """The engine: three chunks, each after a pause, so that a kill comes while answers are being
        sampled.
        """
        words: list[int] = json.loads(address)

        def script(prompt: TokenIds, sampling: Sampling) -> list[int]:
            return answer(words, prompt)

        return ScriptedUpstream(script, chunk=4, delay_s=_DELAY_S, version=version)


def vocabulary(language: PolicyLanguage) -> list[int]:
    """16 letters of a language, and its end of an answer."""
    return [
        *(language.renderer.encode(letter)[0] for letter in _LETTERS),
        *language.renderer.encode("<|im_end|>"),
    ]


def answer(words: Sequence[int], prompt: TokenIds) -> list[int]:
    """The engine's answer to a prompt."""
    digest = hashlib.sha256(json.dumps(list(prompt)).encode()).hexdigest()
    return [*(words[int(digit, 16)] for digit in digest[:_LENGTH]), words[-1]]


class ProxyProcess:
    """`harnessgym proxy`, its listening sockets held here: connections queue while it is dead."""

    def __init__(self, store: str, run_id: str) -> None:
        self._harness = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._control = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._harness.getsockname()[1]}"
        self.control_url = f"http://127.0.0.1:{self._control.getsockname()[1]}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed with the rest
        settings = {
            "store": store,
            "run_id": run_id,
            "policy": POLICY,
            "control_key": KEY,
            "max_length": 30_000,
        }
        settings |= {"fd": self._harness.fileno(), "control_fd": self._control.fileno()}
        self._command = [sys.executable, "-m", "harnessgym", "proxy"]
        self._command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting until it serves."""
        fds = (self._harness.fileno(), self._control.fileno())
        self._process = subprocess.Popen(
            self._command, stdout=self._log, stderr=self._log, pass_fds=fds, cwd=_ROOT
        )

    def end(self, how: signal.Signals) -> int:
        """End it. Returns its status."""
        assert self._process is not None
        self._process.send_signal(how)
        return self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end(signal.SIGKILL)
        for each in (self._harness, self._control, self._log):
            each.close()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An answer that a client received completely."""

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
    """How often it had to try again: by status, or because its connection was lost."""
    _messages: list[dict[str, str]] = field(default_factory=list)

    async def talk(self, until: asyncio.Event) -> None:
        """Ask until the event is set; waits for the last answer."""
        while not until.is_set():
            self._messages.append({"role": "user", "content": f"Turn {len(self.got)}."})
            completion = await self._answer()
            message: dict[str, str] = completion["choices"][0]["message"]
            self._messages.append({"role": "assistant", "content": message["content"]})
            self.got.append(Acknowledged(self.session.session_id, completion["id"][-24:], message["content"]))

    async def _answer(self) -> dict[str, Any]:
        body = json.dumps({"model": "policy", "messages": self._messages}).encode()
        url = f"{self.url}/s/{self.session.key}/v1/chat/completions"
        for attempt in itertools.count():
            headers = {"x-stainless-retry-count": str(attempt)}
            try:
                response = await self.http.post(url, content=body, headers=headers)
            except httpx.TransportError:
                self.refused["connection lost"] += 1
            else:
                if response.status_code == httpx.codes.OK:
                    return cast("dict[str, Any]", response.json())
                if response.status_code < 500 and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    raise RuntimeError(
                        f"The proxy answered {response.status_code}, a client's own fault: {response.text}"
                    )
                self.refused[str(response.status_code)] += 1
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("counting never ends")


@dataclass
class Conversations:
    """The conversations of one rollout. `check` compares the store with what their clients got, and with
    itself.
    """

    url: str
    """The store's."""
    talkers: list[Talker] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Answered calls that are gone, or have other tokens."""
    half: set[str] = field(default_factory=set)
    """Calls that are neither intents without an outcome nor finished with all of it."""
    findings: set[str] = field(default_factory=set)
    """Of `traces verify`, and of SQLite's own check of its file."""

    def __post_init__(self) -> None:
        self._language = PolicyLanguage.of_policy(POLICY)
        self._words = vocabulary(self._language)

    def prepare(self, conn: Connection) -> tuple[str, str]:
        """A run with a policy version, a worker and one rollout, to which all conversations belong.
        Returns run and rollout.
        """
        run_id = runs.add(conn, "conversations", {}, "conversations", "training")
        policy_id, task_id = (
            policies.register(conn, run_id, "policy"),
            runs.add_task(conn, "set", Task("t", "Talk.")),
        )
        start = PolicyVersion(0, None, "full", str(POLICY), 0, "", 0, committed=True, orphaned=False)
        policies.publish(conn, policy_id, start)
        workers.upsert(conn, WorkerRow("echo", run_id, KIND, json.dumps(self._words), 0, "ready"))
        rollouts.submit(
            conn, GroupSpec(run_id, task_id, policy_id, "train", 0, 0, {}, ("talkers",), "process", (0,))
        )
        return run_id, rollouts.claim(conn, run_id, "conversations", 86_400.0, 1)[0].id

    def calls(self, store: TraceStore) -> list[RecordedCall]:
        """The recorded calls of the conversations."""
        return store.read(lambda conn: calls.of_sessions(conn, self._sessions))

    def check(self, store: TraceStore) -> None:
        """Adds to `lost`, `half` and `findings`."""
        recorded = {call.id: call for call in self.calls(store)}
        segments = store.read(lambda conn: calls.segments_of(conn, self._sessions))
        self.half.update(call.id for call in recorded.values() if not _whole(call))
        for heard in (item for talker in self.talkers for item in talker.got):
            call = recorded.get(heard.call_id)
            if call is None or call.status not in FINISHED or not self._exact(call, segments, heard.text):
                self.lost.add(heard.call_id)
        self.findings.update(f"{item.kind}: {item.where}: {item.message}" for item in verify(store).findings)
        if self.url.startswith("sqlite:"):
            sound = store.read(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar())
            self.findings.update([] if sound == "ok" else [f"integrity_check: {sound}"])

    def _exact(self, call: RecordedCall, segments: dict[str, Segment], text: str) -> bool:
        """Whether a call has the tokens that the engine gives this prompt, and they say what the client
        heard.
        """
        completion = segments[call.completion_segment or ""]
        prompt = list[int]()
        at: str | None = call.prompt_segment
        while at is not None:
            prompt = [*segments[at].ids, *prompt]
            at = segments[at].parent_id
        wanted = answer(self._words, prompt)
        written = self._language.renderer.written(completion.ids[:-1]).decode()
        exact = list(completion.ids) == wanted and list(completion.logprobs or ()) == [
            logprob(token) for token in wanted
        ]
        return exact and written == text

    @property
    def _sessions(self) -> list[str]:
        return [talker.session.session_id for talker in self.talkers]


def _whole(call: RecordedCall) -> bool:
    if call.status in ("intent", "error"):
        return call.completion_segment is None and call.completion_len is None
    return call.status in FINISHED and call.completion_segment is not None
