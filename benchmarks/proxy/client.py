"""Many harnesses in one process: conversations that grow turn by turn, over raw sockets. Cheap, so that it is
not the limit.

    python -m benchmarks.proxy.client < load.json > result.json

Every answer is checked against the scripts. What a session says next contains what it was answered, word for
word.
"""

import asyncio
import json
import random
import re
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

import uvloop

from benchmarks.proxy.answers import LONG, POLICY, scripts

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
_SYSTEM = "You look things up and say what you find. " * 25

Shape = Literal["short", "held", "rebuilt"]
"""short: every turn adds a line, as little as a harness can.
held: what an agent reads grows from turn to turn, to prompts of 68,000 tokens at the 50th and of 19,000 on
average.
rebuilt: the same, and the system text tells the time, so no prompt continues an earlier one."""
_WORDS = re.findall(
    r"\w+",
    "the file has a test that fails when its value is none so return an empty list for every path and line "
    "where the parser reads an error before the last block of text was found in this part",
)
_LETTERS_PER_TOKEN = 1.58
"""Of the shipped policy's tokenizer, in such texts."""
_HELD_TOKENS, _HELD_TURNS, _GROWTH = 61_500, 50, 3.03
"""The results of so many turns have so many tokens together, if those of the first t are in proportion to
t ** growth."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to do."""

    host: str
    port: int
    paths: tuple[str, ...]
    """One session each, all at once."""
    turns: int
    stream: bool
    shape: Shape = "short"
    key: str = "none"
    """API key; our sessions have theirs in the path."""
    curve: bool = False
    """Also time, after every turn, how long the body takes to be parsed as JSON and no more."""
    paced: bool = False
    """One turn whose answer is the long script; when each of its tokens arrived is reported."""
    policy: str = str(POLICY)
    """Folder of the tokenizer that the engine speaks."""
    prompts: tuple[int, ...] = ()
    """Ask the engine itself, for completions of prompts of so many token ids, as a proxy has to; nothing
    else is done."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Seconds per turn, in order of completion."""
    bodies: list[int] = field(default_factory=list)
    """With `curve`: bytes of each turn's request."""
    parses: list[float] = field(default_factory=list)
    """With `curve`: seconds `json.loads` takes for it."""
    arrivals: list[list[float]] = field(default_factory=list)
    """With `paced`, per stream: when each piece of text arrived, as [time, characters so far] flattened."""
    wrong: list[str] = field(default_factory=list)
    """Answers that are not what the engine said."""


class Wire(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._waiter: asyncio.Future[bytes] | None = None
        self.seen: list[tuple[float, int]] = []
        """When bytes came, and how many there were then."""
        self.watch = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, message: bytes) -> "asyncio.Future[bytes]":
        """Send a request; the future has the whole response, head included."""
        self._data.clear()
        self.seen.clear()
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        """Part of a response."""
        self._data += data
        if self.watch:
            self.seen.append((time.monotonic(), len(self._data)))
        if self._waiter is not None and not self._waiter.done() and self._complete():
            self._waiter.set_result(bytes(self._data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server went."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionError("closed before the end"))

    def _complete(self) -> bool:
        if self._data.endswith(b"\r\n0\r\n\r\n"):
            return True
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return False
        length = re.search(rb"(?i)content-length: *(\d+)", self._data[:head])
        return length is not None and len(self._data) == head + 4 + int(length[1])


def unchunk(response: bytes) -> tuple[bytes, list[int]]:
    """A chunked response's body; and for every chunk, where in the response it ends."""
    at, parts, ends = response.index(b"\r\n\r\n") + 4, list[bytes](), list[int]()
    while True:
        line = response.index(b"\r\n", at)
        size = int(response[at:line], 16)
        if not size:
            return b"".join(parts), ends
        parts.append(response[line + 2 : line + 2 + size])
        at = line + 4 + size
        ends.append(at)


def said(response: bytes) -> str:
    """The text of an answer, streamed or not."""
    if not response.startswith(b"HTTP/1.1 200"):
        return f"refused: {response[:300]!r}"
    head = response[: response.index(b"\r\n\r\n")].lower()
    body = unchunk(response)[0] if b"chunked" in head else response[len(head) + 4 :]
    if not body.startswith(b"data:"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    text = b"".join(_CONTENT.findall(body))
    return str(json.loads(b'"' + text + b'"')) if b"\\" in text else text.decode()


class Session:
    """One conversation."""

    def __init__(self, load: Load, number: int, path: str, result: Result, known: frozenset[str]) -> None:
        self._load, self._result, self._known = load, result, known
        self._random = random.Random(number)
        self._head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {load.key}\r\ncontent-type: application/json\r\n"
        self._messages = [self._system(-1), self._user(-1)]

    async def run(self) -> None:
        """All its turns."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(Wire, self._load.host, self._load.port)
        wire.watch = self._load.paced
        for turn in range(self._load.turns):
            body = self._body()
            message = f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body
            begun = time.perf_counter()
            response = await wire.ask(message)
            self._result.latencies.append(time.perf_counter() - begun)
            text = said(response)
            if text not in self._known:
                self._result.wrong.append(text[:300] or repr(response[-600:]))
                break
            self._messages += [json.dumps({"role": "assistant", "content": text}), self._user(turn)]
            self._messages[0] = self._system(turn)
            if self._load.curve:
                self._time_parse(body)
            if self._load.paced:
                self._result.arrivals.append(_arrivals(response, wire.seen))
        wire.transport.abort()

    def _body(self) -> bytes:
        options = ', "stream": true' if self._load.stream else ""
        return f'{{"model": "policy", "messages": [{", ".join(self._messages)}]{options}}}'.encode()

    def _time_parse(self, body: bytes) -> None:
        begun = time.perf_counter()
        json.loads(body)
        self._result.parses.append(time.perf_counter() - begun)
        self._result.bodies.append(len(body))

    def _system(self, turn: int) -> str:
        rebuilt = self._load.shape == "rebuilt"
        clock = f"It is {turn // 60 + 9:02}:{turn % 60:02}. " if rebuilt else ""
        return json.dumps({"role": "system", "content": clock + _SYSTEM})

    def _user(self, turn: int) -> str:
        value = turn * 7919 % 1000
        text = f"Result {turn}: the file was read, its value is {value}. Now find the next key and tell me what it holds."
        if self._load.shape != "short":
            text = f"{text}\n{self._read(turn)}"
        return json.dumps({"role": "user", "content": text})

    def _read(self, turn: int) -> str:
        """What the agent reads in a turn. Texts of two sessions, or of two turns, are not alike."""
        before, after = (((turn + more) / _HELD_TURNS) ** _GROWTH for more in (1, 2))
        letters = int(_HELD_TOKENS * (after - before) * _LETTERS_PER_TOKEN)
        words = self._random.choices(_WORDS, k=letters // 4)
        return " ".join(words)[:letters]


async def ask_tokens(load: Load, result: Result) -> None:
    """One request after the other, each timed until its last byte is there."""
    _, wire = await asyncio.get_running_loop().create_connection(Wire, load.host, load.port)
    for length in load.prompts:
        body = f'{{"prompt":[{",".join(["1000"] * length)}],"stream":true}}'.encode()
        head = f"POST {load.paths[0]} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        message = head.encode() + body
        begun = time.perf_counter()
        await wire.ask(message)
        result.latencies.append(time.perf_counter() - begun)
        result.bodies.append(len(body))
    wire.transport.abort()


def _arrivals(response: bytes, seen: list[tuple[float, int]]) -> list[float]:
    """[time, characters of the answer so far, ...] for every chunk that brought text."""
    body, ends = unchunk(response)
    del body
    out: list[float] = []
    at, start, characters = 0, response.index(b"\r\n\r\n") + 4, 0
    for end in ends:
        text = b"".join(_CONTENT.findall(response[start:end]))
        start = end
        while seen[at][1] < end:
            at += 1
        if text:
            characters += len(text)
            out += [seen[at][0], characters]
    return out


async def run(load: Load) -> Result:
    """All sessions at once."""
    result = Result()
    policy = Path(load.policy)
    said = scripts(LONG, 1, policy) if load.paced else scripts(policy=policy)
    known = frozenset(script.text for script in said)
    sessions = [Session(load, number, path, result, known) for number, path in enumerate(load.paths)]
    usage, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    if load.prompts:
        await ask_tokens(load, result)
    else:
        await asyncio.gather(*(session.run() for session in sessions))
    result.wall_s = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_SELF)
    result.cpu_s = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return result


def main() -> None:
    """The process."""
    load = Load(**json.loads(sys.stdin.read()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(asdict(runner.run(run(load))), sys.stdout)


if __name__ == "__main__":
    main()
