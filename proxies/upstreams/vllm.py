"""vLLM's completions protocol with token prompts; the embedded engine speaks it too.

vLLM must run with `--logprobs-mode processed_logprobs`, so that logprobs belong to the distribution that was
sampled from. An engine that adds `policy_versions` (run-length `[[count, version], ...]`) to its choices
labels its own tokens. Otherwise tokens get the version that the worker is known to serve when their sequence
begins, and the sequence fails when that version changes.

vLLM streams routed experts on its own route `/inference/v1/generate` only. A server that reports them is
asked there, and must also run with `--enable-scale-out`.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import UpstreamError, UpstreamLost
from harnessgym.message import Sampling
from harnessgym.routed_experts import RoutedExperts
from harnessgym.tokens import FloatArray, TokenIds
from proxies.http_client import Greeting, HttpClient, Response
from proxies.upstream import LogprobMode, TokenChunk
from proxies.upstreams.routed_experts_wire import from_npy

_KEY = b'"prompt_token_ids":'
_COMPLETIONS = "/v1/completions"
_GENERATE = "/inference/v1/generate"
_PROBE = {"prompt": [0], "max_tokens": 1, "temperature": 0.0}
"""A request of one token, which every vocabulary has, to see what a server reports."""


class PromptEcho:
    """Checks the array `"prompt_token_ids"` in the first event of a stream and replaces it with `null`."""

    # Parsing a prompt of 100,000 tokens only to compare it is slow; comparing its bytes is cheap.

    def __init__(self, prompt: bytes) -> None:
        """`prompt` is a JSON array as it was sent."""
        self._prompt = prompt
        self._before = b""
        """The bytes before the array, until it begins."""
        self._at: int | None = None
        """Number of prompt bytes that have come back; None until the array begins."""
        self._other: bytes | None = None
        """The array so far if it is formatted differently from the prompt; else None."""
        self._over = False

    def strip(self, piece: bytes) -> bytes:
        """The next piece without the array. Raises `UpstreamError` if the engine echoes another prompt."""
        if self._over:
            return piece
        return self._search(piece) if self._at is None else self._compare(piece, self._at)

    def _search(self, piece: bytes) -> bytes:
        before = self._before = self._before + piece
        start = before.find(_KEY) + len(_KEY)
        if len(_KEY) <= start < len(before) and before[start : start + 1] == b"[":
            return before[:start] + self._compare(before[start:], 0)
        if b"\n\n" not in before:
            return b""
        self._over = True
        return before

    def _compare(self, piece: bytes, at: int) -> bytes:
        if self._other is None and self._prompt.startswith(piece, at):
            self._at = at + len(piece)
            return self._ended(b"") if self._at == len(self._prompt) else b""
        rest = len(self._prompt) - at
        if self._other is None and self._prompt.endswith(piece[:rest]):
            return self._ended(piece[rest:])
        # The bytes differ, perhaps only in whitespace: collect the whole array and compare the values.
        self._at = at
        self._other = (self._prompt[:at] if self._other is None else self._other) + piece
        array, end, behind = self._other.partition(b"]")
        if not end and b"\n\n" not in array:
            return b""
        try:
            same = orjson.loads(array + end) == orjson.loads(self._prompt)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"The engine sent an event that is not JSON: {error}") from error
        if not same:
            raise UpstreamError("The engine echoed another prompt than the one that was sent.")
        return self._ended(behind)

    def _ended(self, behind: bytes) -> bytes:
        self._over = True
        return b"null" + behind


class VllmUpstream:
    """One worker at `http://host:port` or `unix:/path`."""

    logprob_mode: LogprobMode = "processed"

    def __init__(self, address: str, *, version: int = 0) -> None:
        self.version = version
        self._client = self._connect(address)

    def _connect(self, address: str) -> HttpClient:
        return HttpClient(address)

    async def generate(
        self, prompt: TokenIds, sampling: Sampling, *, salt: str, experts_from: int = 0
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation.

        Raises `UpstreamLost` if the worker is gone or silent, `UpstreamError` if it refuses.
        """
        prompt_json = orjson.dumps(np.asarray(prompt, dtype=np.int32), option=orjson.OPT_SERIALIZE_NUMPY)
        version = self.version
        route = await self._route()
        body = (
            _request(prompt_json, sampling, salt)
            if route == _COMPLETIONS
            else _generate_request(prompt_json, sampling, salt, experts_from)
        )
        async with self._client.request("POST", route, body) as response:
            await _check(response)
            async with aclosing(_events(response, prompt_json)) as batches:
                # The finish reason comes before the usage: the last chunk is held until it has both.
                held: TokenChunk | None = None
                async for events in batches:
                    chunk, held = self._read(events, held, version)
                    if chunk.ids:
                        yield chunk
                if held is None:
                    raise UpstreamLost("The engine ended its stream without a finish reason.")
                yield held

    async def score(self, ids: TokenIds, temperature: float = 1.0) -> FloatArray:
        """Log-probability of each token given those before it, float32 [T]; entry 0 is 0."""
        if temperature != 1.0:
            raise UpstreamError(f"vLLM scores prompts at temperature 1, not {temperature}. Ask for 1.")
        body = {"prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        async with self._client.request("POST", _COMPLETIONS, json.dumps(body).encode()) as response:
            await _check(response)
            entries = json.loads(await response.body())["choices"][0]["prompt_logprobs"]
        if len(entries) != len(ids):
            raise UpstreamError(f"The engine scored {len(entries)} tokens of {len(ids)}.")
        scores = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], entries[1:], strict=True)]
        return np.array([0.0, *scores], dtype=np.float32)

    async def healthy(self) -> bool:
        """Whether the worker answers its health check within `EngineTimeouts.probe_s`."""
        return await self._client.answers("/health")

    def use_timeouts(self, timeouts: EngineTimeouts) -> None:
        """Set how long the worker may be silent, starting with the next request."""
        self._client.timeouts = timeouts

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    async def _route(self) -> str:
        """Where sequences are asked for."""
        return _COMPLETIONS

    def _read(
        self, events: Sequence[dict[str, Any]], held: TokenChunk | None, version: int
    ) -> tuple[TokenChunk, TokenChunk | None]:
        """The tokens of a batch of events as one chunk, and the last chunk of the answer once it is known."""
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        for event in events:
            if "error" in event:
                raise UpstreamError(f"The engine failed while it answered: {event['error']}")
            if not event["choices"]:
                held = _with_usage(held, event["usage"])
                continue
            choice = event["choices"][0]
            chunk = self._tokens(choice, version)
            if choice["finish_reason"] is None:
                ids += chunk[0]
                logprobs += chunk[1]
                versions += chunk[2]
            else:
                held = _last(choice, *chunk)
        return TokenChunk(tuple(ids), tuple(logprobs), tuple(versions)), held

    def _tokens(
        self, choice: dict[str, Any], version: int
    ) -> tuple[Sequence[int], Sequence[float], Sequence[int]]:
        """The ids, logprobs and versions of one event, for a sequence that began under `version`."""
        ids = choice.get("token_ids") or ()
        logprobs = _logprobs(choice["logprobs"]) if ids and choice["logprobs"] else ()
        runs = choice.get("policy_versions")
        if runs is None and self.version != version:
            raise UpstreamLost(
                f"The worker went from version {version} to {self.version} in the middle of an answer."
            )
        versions = (
            (version,) * len(ids)
            if runs is None
            else [number for count, number in runs for _ in range(count)]
        )
        if not len(ids) == len(logprobs) == len(versions):
            counts = f"{len(ids)} ids, {len(logprobs)} logprobs, {len(versions)} versions"
            raise UpstreamError(
                f"The engine gave {counts} in one event. Is it asked for logprobs and token ids?"
            )
        return ids, logprobs, versions


class OutsideVllmUpstream(VllmUpstream):
    """A vLLM server, which does not label its tokens.

    If it has the routes of weight updates, every new connection first asks for its weight version:
    `VERSION@POLICY` from a weight agent, "default" after a restart. A connection is used only if the answer
    is the version that the worker is known to serve.
    """

    def __init__(self, address: str, *, version: int = 0) -> None:
        super().__init__(address, version=version)
        self._reports_experts: bool | None = None
        """None: not known, or the server may have been started again since."""

    def _connect(self, address: str) -> HttpClient:
        return HttpClient(address, greeting=Greeting("/weight_info", self._check_weights))

    async def healthy(self) -> bool:
        """Whether the worker answers its health check within `EngineTimeouts.probe_s`."""
        self._reports_experts = None
        return await super().healthy()

    async def _route(self) -> str:
        if self._reports_experts is None:
            async with self._client.request("POST", _COMPLETIONS, orjson.dumps(_PROBE)) as response:
                reports = self._reports_experts = _has_experts(response.status, await response.body())
            return _GENERATE if reports else _COMPLETIONS
        return _GENERATE if self._reports_experts else _COMPLETIONS

    def _check_weights(self, status: int, body: bytes) -> None:
        if status == 404:  # it has no such route, so nobody updates it
            return
        if status != 200:
            raise UpstreamLost(
                f"The engine does not say which weights it serves: /weight_info answers with status {status}."
            )
        try:
            serves = str(orjson.loads(body)["weight_version"])
        except (
            orjson.JSONDecodeError,
            KeyError,
            TypeError,
        ):  # a server that answers every path with something else
            return
        if serves.partition("@")[0] != str(self.version) and not (serves == "default" and self.version == 0):
            raise UpstreamLost(
                f"The engine serves weights {serves!r}, but the worker is registered with version "
                f"{self.version}. Was it restarted? Its weight agent will install the newest version."
            )


def _last(
    choice: dict[str, Any], ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
) -> TokenChunk:
    finish = choice["finish_reason"]
    stop = choice.get("stop_reason")
    stop_token = None
    if finish == "stop" and not isinstance(stop, str):
        stop_token = stop if stop is not None else (ids[-1] if ids else None)
    experts = choice.get("routed_experts")
    routed = None if experts is None else RoutedExperts(0, from_npy(experts))
    return TokenChunk(tuple(ids), tuple(logprobs), tuple(versions), finish, stop_token, routed_experts=routed)


def _logprobs(values: dict[str, Any]) -> Sequence[float]:
    """The logprobs of some tokens, in the form of either route."""
    if "content" in values:
        return [token["logprob"] for token in values["content"]]
    logprobs: list[float] = values["token_logprobs"]
    return logprobs


def _has_experts(status: int, body: bytes) -> bool:
    """Whether the answer to the probe has routed experts."""
    try:
        return status == 200 and orjson.loads(body)["choices"][0].get("routed_experts") is not None
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return False  # another server


def _with_usage(held: TokenChunk | None, usage: dict[str, Any]) -> TokenChunk:
    if held is None:
        if usage["completion_tokens"]:
            raise UpstreamError("The engine sent its usage before a finish reason.")
        # vLLM leaves out a chunk that has neither text nor tokens, also that of a sequence which is aborted
        # for new weights before its first token.
        held = TokenChunk((), (), (), "abort")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    # They end with the last token but one. How many there are says whether the server left out the first.
    routed = held.routed_experts
    if routed is not None:
        start = usage["prompt_tokens"] + usage["completion_tokens"] - 1 - routed.end
        if start < 0:
            raise UpstreamError(f"The engine reported the experts of {-start} tokens too many.")
        routed = RoutedExperts(start, routed.experts)
    return replace(
        held,
        routed_experts=routed,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=cached,
    )


def _request(prompt: bytes, sampling: Sampling, salt: str) -> bytes:
    """A request's body; the prompt is a JSON array."""
    body: dict[str, Any] = {
        "prompt": orjson.Fragment(prompt),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "logprobs": 0,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": salt,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return orjson.dumps(body)


def _generate_request(prompt: bytes, sampling: Sampling, salt: str, experts_from: int) -> bytes:
    """A request's body for `_GENERATE`; the prompt is a JSON array."""
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "logprobs": 0,
    }
    if sampling.stop:
        parameters["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        parameters["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if experts_from:
        parameters["routed_experts_prompt_start"] = experts_from
    return orjson.dumps(
        {
            "token_ids": orjson.Fragment(prompt),
            "sampling_params": parameters,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }
    )


async def _check(response: Response) -> None:
    if response.status == 200:
        return
    text = (await response.body()).decode(errors="replace")[:2_000]
    kind = UpstreamLost if response.status in (502, 503, 504) else UpstreamError
    raise kind(f"The engine refused with status {response.status}: {text}")


async def _events(response: Response, prompt: bytes) -> AsyncGenerator[list[dict[str, Any]]]:
    """Yields the JSON values of an event stream up to its `[DONE]`, in batches as they arrive.

    `prompt` is a JSON array. Raises `UpstreamError` if an event echoes another prompt.
    """
    echo = PromptEcho(prompt)
    buffer = b""
    async for piece in response.pieces():
        *events, buffer = (buffer + echo.strip(piece)).split(b"\n\n")
        try:
            values = [orjson.loads(event[6:]) for event in events if event.startswith(b"data: {")]
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"The engine sent an event that is not JSON: {error}") from error
        if values:
            yield values
