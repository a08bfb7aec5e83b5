"""SGLang's own `/generate`, with token ids in and out.

Logprobs are those of `meta_info.output_token_logprobs`. SGLang computes them after the temperature and before
top-p and top-k, unless it runs with `SGLANG_RETURN_ORIGINAL_LOGPROB`, which a policy gradient cannot use.
Seeds have an effect only under `--enable-deterministic-inference`.

Tokens are labelled with `meta_info.weight_versions` (spans) or `weight_version`, so a weight update must name
its policy version. The label "default" means the weights that the engine was started with: version 0 only.
Any other label that is not a number names no version.

A server that runs with `--enable-return-routed-experts` is asked for them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import orjson

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import UpstreamError, UpstreamLost
from harnessgym.message import Sampling
from harnessgym.routed_experts import RoutedExperts
from harnessgym.tokens import FloatArray, TokenIds
from proxies.http_client import HttpClient, Response
from proxies.upstream import LogprobMode, TokenChunk
from proxies.upstreams.routed_experts_wire import from_int32


async def check(response: Response) -> None:
    """Raises `UpstreamLost` for the statuses 502 to 504, `UpstreamError` for all others but 200."""
    if response.status == 200:
        return
    text = (await response.body()).decode(errors="replace")[:2_000]
    kind = UpstreamLost if response.status in (502, 503, 504) else UpstreamError
    raise kind(f"The engine refused with status {response.status}: {text}")


async def events(response: Response) -> AsyncGenerator[dict[str, Any]]:
    """Yields the JSON objects of a stream, up to its `[DONE]`."""
    buffer = b""
    async for piece in response.pieces():
        *whole, buffer = (buffer + piece).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: {"):
                try:
                    yield orjson.loads(event[6:])
                except orjson.JSONDecodeError as error:
                    raise UpstreamError(f"The engine sent an event that is not JSON: {error}") from error


class SglangUpstream:
    """One worker at `http://host:port` or `unix:/path`."""

    logprob_mode: LogprobMode = "processed"

    def __init__(self, address: str, *, version: int = 0) -> None:
        self.version = version
        self._client = HttpClient(address)
        self._reports_experts: bool | None = None
        """None: not known, or the server may have been started again since."""

    async def generate(
        self, prompt: TokenIds, sampling: Sampling, *, salt: str, experts_from: int = 0
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation.

        Raises `UpstreamLost` if the worker is gone or silent, `UpstreamError` if it refuses.
        """
        body: dict[str, Any] = {
            "input_ids": list(prompt),
            "sampling_params": _parameters(sampling),
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": True,
            "extra_key": salt,
        }
        if await self._asks_for_experts():
            body |= {"return_routed_experts": True, "routed_experts_start_len": experts_from}
        seen = 0
        async with self._client.request("POST", "/generate", orjson.dumps(body)) as response:
            await check(response)
            async with aclosing(events(response)) as answers:
                async for answer in answers:
                    chunk = self._read(answer, seen, experts_from)
                    seen += len(chunk.ids)
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
        raise UpstreamLost("The engine ended its stream without a finish reason.")

    async def score(self, ids: TokenIds, temperature: float = 1.0) -> FloatArray:
        """Log-probability of each token given those before it, float32 [T]; entry 0 is 0."""
        if temperature != 1.0:
            raise UpstreamError(f"SGLang scores prompts at temperature 1, not {temperature}. Ask for 1.")
        parameters = {"max_new_tokens": 0, "temperature": 1.0}
        body = {
            "input_ids": list(ids),
            "sampling_params": parameters,
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        async with self._client.request("POST", "/generate", orjson.dumps(body)) as response:
            await check(response)
            entries = orjson.loads(await response.body())["meta_info"]["input_token_logprobs"]
        if [entry[1] for entry in entries] != list(ids):
            raise UpstreamError(
                f"The engine got {len(ids)} tokens and scored {len(entries)}, or other tokens."
            )
        return np.array([0.0, *(entry[0] for entry in entries[1:])], dtype=np.float32)

    async def healthy(self) -> bool:
        """Whether the worker answers its health check within `EngineTimeouts.probe_s`."""
        self._reports_experts = None
        return await self._client.answers("/health")

    def use_timeouts(self, timeouts: EngineTimeouts) -> None:
        """Set how long the worker may be silent, starting with the next request."""
        self._client.timeouts = timeouts

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    async def _asks_for_experts(self) -> bool:
        reports = self._reports_experts
        if reports is None:
            async with self._client.request("GET", "/server_info") as response:
                reports = self._reports_experts = _reports_experts(response.status, await response.body())
        return reports

    def _read(self, answer: dict[str, Any], seen: int, experts_from: int) -> TokenChunk:
        """The tokens of an event after the first `seen`."""
        if "error" in answer:
            raise UpstreamError(f"The engine failed while it answered: {answer['error']}")
        meta = answer["meta_info"]
        total = meta.get("completion_tokens", seen)
        # Events repeat all tokens, or have only new ones under `--incremental-streaming-output`: in both
        # cases the new ones are the last `total - seen`.
        entries = (meta.get("output_token_logprobs") or [])[seen - total :] if total > seen else []
        if len(entries) != max(0, total - seen):
            raise UpstreamError(
                f"The engine gave logprobs of {len(entries)} new tokens; it has sampled {total - seen}."
            )
        ids = tuple(int(entry[1]) for entry in entries)
        versions = self._versions(meta, seen, total)
        finish = meta.get("finish_reason")
        if finish is None:
            return TokenChunk(ids, tuple(entry[0] for entry in entries), versions)
        kind = finish["type"]
        matched = finish.get("matched")
        if kind not in ("stop", "length", "abort"):
            raise UpstreamError(f"The engine ended its answer for an unknown reason: {finish}.")
        if kind == "abort" and finish.get("status_code") in (400, 422):
            raise UpstreamError(f"The engine refused: {finish.get('message')}")
        routed = None
        if meta.get("routed_experts") is not None:
            # The last token was sampled and not computed.
            tokens = meta["prompt_tokens"] + total - 1 - experts_from
            routed = RoutedExperts(experts_from, from_int32(meta["routed_experts"], tokens))
        return TokenChunk(
            ids,
            tuple(entry[0] for entry in entries),
            versions,
            kind,
            matched if kind == "stop" and isinstance(matched, int) else None,
            prompt_tokens=meta.get("prompt_tokens"),
            completion_tokens=total,
            cached_tokens=meta.get("cached_tokens") or 0,
            routed_experts=routed,
        )

    def _versions(self, meta: dict[str, Any], seen: int, total: int) -> tuple[int, ...]:
        """The versions of the tokens [seen, total); unlabelled tokens get the worker's known version."""
        spans = meta.get("weight_versions") or [
            {"version": meta.get("weight_version"), "start": 0, "end": total}
        ]
        out = [self.version] * (total - seen)
        for span in spans:
            for index in range(max(span["start"], seen), min(span["end"], total)):
                out[index - seen] = self._version(span["version"])
        return tuple(out)

    def _version(self, label: object) -> int:
        """The version that a label names.

        Raises `UpstreamLost` if it names none: the engine was restarted or is being updated.
        """
        if label is None or (label == "default" and self.version == 0):
            return self.version
        version = str(label).partition("@")[0]  # a weight agent says `VERSION@POLICY`
        if not version.isdecimal():
            raise UpstreamLost(
                f"The engine serves weights {label!r}, but the worker is registered with version "
                f"{self.version}. Was it restarted? Its weight agent will install the newest version."
            )
        return int(version)


def _reports_experts(status: int, body: bytes) -> bool:
    try:
        return status == 200 and bool(orjson.loads(body).get("enable_return_routed_experts"))
    except (orjson.JSONDecodeError, AttributeError):
        return False  # an older server, which has another route


def _parameters(sampling: Sampling) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.stop:
        parameters["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        parameters["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.seed is not None:
        parameters["sampling_seed"] = sampling.seed
    return parameters
