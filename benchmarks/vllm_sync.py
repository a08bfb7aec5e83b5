"""What vLLM does with answers in flight when it is paused and given other weights: `python -m
benchmarks.vllm_sync`.

For each mode of `/pause`: four long streams, a pause after some tokens, another version by the weight agent's
installer, and what came of the streams. Whose weights gave a token is told by transformers: its logprob under
either version, given all tokens before it. Real weights, real vLLM (CPU build, float32); times are of this
machine.
"""

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file
from torch import Tensor

from harnessgym.errors import UpstreamError
from harnessgym.store.policies import PolicyVersion
from tests.support import vllm_cpu
from tests.support.vllm_cpu import logprobs_under, other_weights, reference
from trainers.weights.installers.api import EngineApi
from trainers.weights.installers.vllm import VllmInstaller
from trainers.weights.publish import publish_full

STREAMS, BEFORE, TOKENS = 4, 12, 60
PROMPT = (1, 504, 253, 260, 28, 339)
CLOSE = 1e-2
"""Largest difference of a logprob that is said to be of a version's weights."""


@dataclass
class Stream:
    """One answer: tokens, their logprobs, when they came, and how it ended."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish: str | None = None


async def listen(http: httpx.AsyncClient, seed: int, stream: Stream) -> None:
    """Sample one answer."""
    body = {
        "prompt": list(PROMPT), "max_tokens": TOKENS, "temperature": 1.0, "seed": seed, "logprobs": 0, "ignore_eos": True,
        "return_token_ids": True, "stream": True, "cache_salt": "sync",
    }  # fmt: skip
    async with http.stream("POST", "/v1/completions", json=body, timeout=600) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                ids = choice.get("token_ids") or []
                stream.ids += ids
                stream.logprobs += choice["logprobs"]["token_logprobs"] if ids else []
                stream.times += [time.monotonic()] * len(ids)
                stream.finish = choice["finish_reason"] or stream.finish


async def try_mode(
    address: str, mode: str, weights: dict[str, Tensor], version: PolicyVersion
) -> tuple[list[Stream], dict[str, Any]]:
    """Pause four streams in this mode, install, resume."""
    streams = [Stream() for _ in range(STREAMS)]
    async with (
        httpx.AsyncClient(base_url=address, trust_env=False) as http,
        EngineApi(address, timeout_s=600) as api,
    ):
        engine = VllmInstaller(api, "sync", Path(tempfile.gettempdir()))
        await engine.look()
        tasks = [asyncio.create_task(listen(http, seed, stream)) for seed, stream in enumerate(streams)]
        while min(len(stream.ids) for stream in streams) < BEFORE:
            await asyncio.sleep(0.02)
        began, sampled = time.monotonic(), sum(len(stream.ids) for stream in streams)
        await api.ask("POST", "/pause", params={"mode": mode})
        paused, problem = time.monotonic(), ""
        before = [len(stream.ids) for stream in streams]
        try:
            await engine.install(weights, version)
        except UpstreamError as error:
            problem = str(error)
            await engine.resume()
        ready = time.monotonic()
        await asyncio.gather(*tasks)
    figures = {
        "mode": mode, "tokens_when_asked": sampled, "tokens_when_paused": sum(before), "before": before,
        "tokens_in_all": sum(len(stream.ids) for stream in streams), "finish": sorted({str(s.finish) for s in streams}),
        "pause_s": round(paused - began, 2), "install_s": round(ready - paused, 2), "problem": problem,
    }  # fmt: skip
    return streams, figures


def whose(streams: list[Stream], before: list[int], old: Any, new: Any) -> dict[str, str]:
    """Which weights gave the tokens before and after the pause."""
    shares: dict[str, list[tuple[bool, bool]]] = {"before": [], "after": []}
    for stream, cut in zip(streams, before, strict=True):
        given = torch.tensor(stream.logprobs)
        matches = [
            (logprobs_under(model, list(PROMPT), stream.ids) - given).abs() < CLOSE for model in (old, new)
        ]
        for index, pair in enumerate(zip(matches[0].tolist(), matches[1].tolist(), strict=True)):
            shares["before" if index < cut else "after"].append(pair)
    return {when: _named(pairs) for when, pairs in shares.items()}


def _named(pairs: list[tuple[bool, bool]]) -> str:
    count = len(pairs)
    if not count:
        return "none"
    old, new = (sum(pair[side] for pair in pairs) for side in (0, 1))
    neither = sum(not any(pair) for pair in pairs)
    return f"{count} tokens: {old} old, {new} new, {neither} of neither"


def main() -> None:
    """Print a table row per mode."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, vllm_cpu.serving(Path(folder) / "vllm.log") as server:
        old = reference(load_file(vllm_cpu.MODEL / "model.safetensors"))
        for number, mode in enumerate(("abort", "wait", "keep"), start=1):
            weights = other_weights(number)
            made = publish_full(Path(folder) / "versions", number, None, weights, number, "sync")
            row = PolicyVersion(
                number,
                None,
                "full",
                str(made.path),
                number,
                made.checksum,
                made.bytes,
                committed=True,
                orphaned=False,
            )
            streams, figures = asyncio.run(try_mode(server.address, mode, weights, row))
            new = reference(weights)
            sys.stdout.write(
                json.dumps({**figures, **whose(streams, figures.pop("before"), old, new)}) + "\n"
            )
            sys.stdout.flush()
            old = new


if __name__ == "__main__":
    main()
