"""An engine that answers at once, or at a fixed pace: a process of its own, so that its cost is not the
proxy's.

    python -m benchmarks.proxy.engine --port 0 [--rate 20] [--policy FOLDER]

`/v1/completions` speaks vLLM's wire with token ids and logprobs, one event a token; `/v1/chat/completions`
speaks OpenAI's, for the peers, which pass chat through. The answer is chosen by the length of the prompt.
Nothing of a request is parsed that can be counted instead.
"""

import argparse
import asyncio
import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

from benchmarks.proxy.answers import LONG, POLICY, Script, scripts
from proxies.app import address_of, listen

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
_STREAM = re.compile(rb'"stream":\s*true')
_LOGPROB = -0.5
_CREATED = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Written:
    """One answer in every form in which it is asked for."""

    script: Script
    completion: tuple[bytes, ...]
    """vLLM's events, one a token; the first one lacks its `prompt_token_ids`, which stand at `HOLE`."""
    chat: tuple[bytes, ...]
    """OpenAI chunks: the role, one a token, the finish reason."""


HOLE = b'"prompt_token_ids":"hole"'


def write(script: Script) -> Written:
    """Render an answer."""
    completion = [_event(_completion(script, index)) for index in range(len(script.ids))]
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": piece} for piece in script.pieces[:-1]),
    ]
    chat = [_event(_chunk(delta, None)) for delta in deltas]
    return Written(script, tuple(completion), (*chat, _event(_chunk({}, "stop"))))


def _completion(script: Script, index: int) -> dict[str, Any]:
    last = index == len(script.ids) - 1
    piece = script.pieces[index]
    logprobs = {
        "text_offset": [0],
        "token_logprobs": [_LOGPROB],
        "tokens": [piece],
        "top_logprobs": [{piece: _LOGPROB}],
    }
    choice = {
        "index": 0,
        "text": piece,
        "logprobs": logprobs,
        "finish_reason": "stop" if last else None,
        "stop_reason": None,
        "token_ids": [script.ids[index]],
        "prompt_token_ids": None if index else "hole",
    }
    return {
        "id": "cmpl-0",
        "object": "text_completion",
        "created": _CREATED,
        "model": "policy",
        "choices": [choice],
    }


def _chunk(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": "policy",
        "choices": [choice],
    }


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Exchange(asyncio.Protocol):
    """One connection; also the callbacks of httptools' parser."""

    def __init__(self, written: list[Written], rate: float) -> None:
        self._written, self._rate = written, rate
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """A request's target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Part of its body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer it."""
        body, url = b"".join(self._body), self._url
        self._body.clear()
        self._url = b""
        if url.endswith(b"/chat/completions"):
            self._chat(body)
        elif url.endswith(b"/completions"):
            self._completions(body)
        else:
            self._whole(b"{}")

    def _completions(self, body: bytes) -> None:
        prompt = body[body.index(b"[", body.index(b'"prompt"')) :]
        prompt = prompt[: prompt.index(b"]") + 1]
        count = prompt.count(b",") + 1
        written = self._pick(count)
        first = written.completion[0].replace(HOLE, b'"prompt_token_ids":' + prompt)
        usage = {"choices": [], "usage": _usage(count, len(written.script.ids))}
        self._stream([first, *written.completion[1:]], [_event(usage), b"data: [DONE]\n\n"])

    def _chat(self, body: bytes) -> None:
        written, count = self._pick(len(body)), len(body) // 4
        if _STREAM.search(body):
            self._stream(list(written.chat), [b"data: [DONE]\n\n"])
            return
        script = written.script
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": script.text},
            "finish_reason": "stop",
        }
        out: dict[str, Any] = {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": _CREATED,
            "model": "policy",
        }
        if b'"return_token_ids"' in body:
            choice["token_ids"] = script.ids
            choice["logprobs"] = {
                "content": [{"token": piece, "logprob": _LOGPROB} for piece in script.pieces]
            }
            out["prompt_token_ids"] = [1] * count
        self._whole(
            json.dumps({**out, "choices": [choice], "usage": _usage(count, len(script.ids))}).encode()
        )

    def _pick(self, length: int) -> Written:
        return self._written[length % len(self._written)]

    def _whole(self, body: bytes) -> None:
        self._transport.write(_HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(body) + body)

    def _stream(self, events: list[bytes], ending: list[bytes]) -> None:
        head = _HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"
        if not self._rate:
            self._transport.write(head + _chunked(b"".join(events + ending)) + b"0\r\n\r\n")
            return
        self._transport.write(head)
        self._pace(events, _chunked(b"".join(ending)) + b"0\r\n\r\n", asyncio.get_running_loop().time(), 0)

    def _pace(self, events: list[bytes], ending: bytes, start: float, index: int) -> None:
        """Give the token that is due; those behind it follow on a schedule that lateness does not move."""
        if self._transport.is_closing():
            return
        if index == len(events):
            self._transport.write(ending)
            return
        self._transport.write(_chunked(events[index]))
        due = start + (index + 1) / self._rate
        asyncio.get_running_loop().call_at(due, self._pace, events, ending, start, index + 1)


async def serve(port: int, rate: float, policy: Path) -> None:
    """Serve until SIGTERM. Prints the address."""
    said = scripts(LONG, 1, policy) if rate else scripts(policy=policy)
    written = [write(script) for script in said]
    listener = listen(None, None, "127.0.0.1", port)
    assert listener is not None
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Exchange(written, rate), sock=listener)
    print(address_of(listener), flush=True)
    async with server:
        await stop.wait()


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="tokens a second; 0 gives all at once")
    parser.add_argument("--policy", type=Path, default=POLICY, help="folder of the tokenizer that is spoken")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.port, options.rate, options.policy))


if __name__ == "__main__":
    main()
