"""A reference that an engine serves: vLLM, or `harnessgym engine`. It scores rows as prompts.

The wire is that of vLLM's completions: `prompt_logprobs` asks for the log-probability of each prompt token
and of the likeliest ones in its place (vllm/entrypoints/openai/completion/protocol.py).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from harnessgym.errors import TrainerError
from harnessgym.proxy_client import trust_for
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.reference_settings import EngineReference
from trainers.scoring import TopTokens
from trainers.world import World

_CONNECT_S = 5.0
PromptScores = list[dict[str, dict[str, Any]] | None]
"""For each token of a prompt but the first: by token id, as text, its log-probability and rank."""


class ScoringEngine:
    """Scores with an engine. In a trainer of several processes only the leader asks it."""

    def __init__(self, settings: EngineReference, world: World) -> None:
        self.settings = settings
        self.world = world

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """See `Reference.logprobs`. Raises `TrainerError` if the engine is gone or refuses."""
        return self._of_all(rows, 0, _logprobs)

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """See `Reference.top`. Raises `TrainerError` if the engine is gone or refuses."""

        def likeliest(row: Row, entries: PromptScores) -> TopTokens:
            return _top(row, entries, count, vocabulary)

        return self._of_all(rows, count, likeliest)

    def stepped(self) -> None:
        """Nothing: it stays as it is."""

    def state(self) -> None:
        """None: the engine has the weights."""

    def load(self, state: dict[str, Any] | None) -> None:
        """Nothing: there is no state."""

    def _of_all(self, rows: Sequence[Row], count: int, read: Any) -> list[Any]:
        found = []
        if self.world.rank == 0:
            with self._client() as client, ThreadPoolExecutor(self.settings.requests) as threads:
                found = list(threads.map(lambda row: self._of_one(client, row, count, read), rows))
        return self.world.broadcast(found)

    def _client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.settings.url.rstrip("/"),
            timeout=httpx.Timeout(self.settings.timeout_s, connect=_CONNECT_S),
            trust_env=False,
            verify=trust_for(self.settings.url),
        )

    def _of_one(self, client: httpx.Client, row: Row, count: int, read: Any) -> Any:
        if not row.mask.any():
            return read(row, [None] + [{}] * (len(row.ids) - 1))
        body = {"prompt": row.ids.tolist(), "max_tokens": 1, "prompt_logprobs": count, "temperature": 1.0}
        try:
            response = client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            raise TrainerError(
                f"The engine at {self.settings.url} does not score a row of {len(row.ids)} tokens "
                f"({error!r}). Does it run? Start it, and then the run again; it resumes."
            ) from error
        try:
            entries: PromptScores = response.raise_for_status().json()["choices"][0]["prompt_logprobs"]
            if len(entries) != len(row.ids):
                raise ValueError(f"it scored {len(entries)} tokens of {len(row.ids)}")
            return read(row, entries)
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
            raise TrainerError(
                f"The engine at {self.settings.url} did not score a row of {len(row.ids)} tokens: {error!r}: "
                f"{response.text[:500]} It must have room for one token behind the longest row."
            ) from error


def _logprobs(row: Row, entries: PromptScores) -> FloatArray:
    out = np.zeros(len(row.ids), np.float32)
    for place in np.flatnonzero(row.mask).tolist():
        out[place] = (entries[place] or {})[str(row.ids[place])]["logprob"]
    return out


def _top(row: Row, entries: PromptScores, count: int, vocabulary: int) -> TopTokens:
    ids, logprobs = np.zeros((len(row.ids), count), np.int32), np.zeros((len(row.ids), count), np.float32)
    for place in np.flatnonzero(row.mask).tolist():
        # Beside the likeliest tokens there is the prompt's own, whatever its rank.
        own = sorted((entries[place] or {}).items(), key=lambda item: -item[1]["logprob"])[:count]
        if len(own) < count:
            raise ValueError(f"it reported {len(own)} of {count} likely tokens")
        ids[place] = [int(token) for token, _ in own]
        if ids[place].max() >= vocabulary:
            raise ValueError(
                f"token {ids[place].max()} is likely there, and the policy has {vocabulary} tokens"
            )
        logprobs[place] = [entry["logprob"] for _, entry in own]
    return TopTokens(ids, logprobs)
