"""An engine with scripted answers, for testing harnesses, recipes and the proxy itself without a model.

It is deterministic. Answers come from a list, in turn, or from a function of the prompt. Logprobs are a
function of the token, the same for `generate` and `score`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harnessgym.errors import UpstreamError, UpstreamLost
from harnessgym.message import Sampling
from harnessgym.routed_experts import ExpertArray, RoutedExperts
from harnessgym.tokens import FloatArray, TokenIds
from proxies.upstream import LogprobMode, TokenChunk

Script = Sequence[TokenIds] | Callable[[TokenIds, Sampling], TokenIds]


@dataclass(frozen=True, slots=True)
class Failure:
    """How a scripted answer fails, after `after` tokens."""

    after: int = 0
    lost: bool = True
    """Raise `UpstreamLost`, as if the worker were gone; otherwise `UpstreamError`, a refusal."""


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request to a scripted engine."""

    prompt: tuple[int, ...]
    sampling: Sampling
    salt: str


class ScriptedUpstream:
    """Plays a script.

    ```python
    upstream = ScriptedUpstream([tokenizer.encode("Hello!<|im_end|>").ids])
    ```
    """

    logprob_mode: LogprobMode = "processed"

    def __init__(
        self,
        script: Script,
        *,
        chunk: int = 4,
        delay_s: float = 0.0,
        version: int = 0,
        failures: Sequence[Failure | None] = (),
        miscount: int = 0,
        routing: tuple[int, int, int] | None = None,
    ) -> None:
        """Yield `chunk` tokens at a time, with a delay of `delay_s` seconds before each chunk.

        The n-th request fails as `failures[n]` says. Usage reports `miscount` tokens too many. `routing` has
        the numbers of layers, of experts per token and of experts, if `scripted_experts` are reported.
        """
        self.version = version
        self.asked: list[ScriptedRequest] = []
        self.gate = asyncio.Event()
        """Answers pause while it is clear. Set initially."""
        self.gate.set()
        self._script = script
        self._chunk = chunk
        self._delay_s = delay_s
        self._failures = list(failures)
        self._miscount = miscount
        self._routing = routing
        self.cancelled = 0
        """Number of requests whose caller left before their end."""

    async def generate(
        self, prompt: TokenIds, sampling: Sampling, *, salt: str, experts_from: int = 0
    ) -> AsyncGenerator[TokenChunk]:
        """Yield the script's next answer, cut to `max_tokens`."""
        number = len(self.asked)
        self.asked.append(ScriptedRequest(tuple(prompt), sampling, salt))
        whole = tuple(
            self._script(prompt, sampling)
            if callable(self._script)
            else self._script[number % len(self._script)]
        )
        ids = whole[: sampling.max_tokens]
        failure = self._failures[number] if number < len(self._failures) else None
        end = len(ids) if failure is None else min(failure.after, len(ids))
        try:
            for start in range(0, end, self._chunk):
                await self._pause()
                part = ids[start : min(start + self._chunk, end)]
                yield TokenChunk(part, tuple(map(logprob, part)), (self.version,) * len(part))
            await self._pause()
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        if failure is not None:
            raise (UpstreamLost if failure.lost else UpstreamError)(
                f"The scripted engine fails after {end} tokens."
            )
        cut = len(ids) < len(whole)
        yield TokenChunk(
            (),
            (),
            (),
            "length" if cut else "stop",
            None if cut or not ids else ids[-1],
            prompt_tokens=len(prompt),
            completion_tokens=len(ids) + self._miscount,
            routed_experts=None
            if self._routing is None
            else RoutedExperts(0, scripted_experts([*prompt, *ids][:-1], *self._routing)).beginning_at(
                experts_from
            ),
        )

    async def score(self, ids: TokenIds, temperature: float = 1.0) -> FloatArray:  # noqa: ARG002
        """The logprobs that `generate` would give these tokens, float32 [T]; entry 0 is 0."""
        return np.array([0.0, *map(logprob, ids[1:])], dtype=np.float32)

    async def healthy(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Does nothing: there are no connections."""

    async def _pause(self) -> None:
        await self.gate.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)


def scripted_experts(ids: TokenIds, layers: int, top_k: int, experts: int) -> ExpertArray:
    """A scripted engine's experts, [len(ids), layers, top_k]: a function of each token and its position."""
    first = (np.asarray(ids, np.int64) + np.arange(len(ids)))[:, None, None]
    chosen = (first + np.arange(layers)[:, None] + np.arange(top_k)) % experts
    return chosen.astype(np.uint8) if experts <= 1 << 8 else chosen.astype(np.uint16)


def logprob(token: int) -> float:
    """A scripted engine's logprob of a token, exact in float32."""
    return -(1 + token % 97) / 64
