"""vLLM, which must run with `VLLM_SERVER_DEV_MODE=1` and the worker extension in `beside_vllm` (see
docs/weights-engines.md).

Written against vLLM 0.32: its routes `/pause`, `/resume`, `/weight_info`, `/update_weight_version`,
`/reset_prefix_cache` and `/collective_rpc` (`vllm/entrypoints/rl/online/api_router.py`,
`entrypoints/serve/dev`). The engine reports the version that it serves as its "weight version", to the agent
and, on every new connection, to the proxy. A restarted engine reports "default", and one in the middle of an
installation "installing": neither is a version.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from harnessgym.errors import PolicyError, UpstreamError, UpstreamLost
from harnessgym.store.policies import PolicyVersion
from trainers.weights.installers.api import (
    INSTALLING,
    WEIGHTS,
    EngineApi,
    digests,
    label_of,
    stage,
    tidy,
    version_in,
)

PLUGIN = Path(__file__).parent / "beside_vllm"
"""Folder for vLLM's `PYTHONPATH`."""
EXTENSION = "harnessgym_vllm.Weights"
"""For vLLM's `--worker-extension-cls`."""


class VllmInstaller:
    """One vLLM server."""

    kind = "vllm"
    carries_over = False

    def __init__(self, api: EngineApi, policy_id: str, scratch: Path) -> None:
        self._api = api
        self._policy_id = policy_id
        self._scratch = scratch
        self._label = ""

    @property
    def version(self) -> int | None:
        """The served version, as last reported by the engine; None for weights that are no version."""
        return version_in(self._label, self._policy_id)

    async def look(self) -> None:
        """Query the served version. Raises `UpstreamLost` if the engine does not answer, `UpstreamError` if
        the answer has no version label.
        """
        self._label = ""
        info = await self._api.ask(
            "GET", "/weight_info", hint="with VLLM_SERVER_DEV_MODE=1", timeout_s=self._api.quick_s
        )
        self._label = str(info["weight_version"])

    async def pause(self) -> None:
        """Abort the calls in flight, which return the tokens so far, and hold new ones until `resume`."""
        await self._api.ask(
            "POST", "/pause", params={"mode": "abort", "clear_cache": "true"}, timeout_s=self._api.quick_s
        )

    async def resume(self) -> None:
        """Accept calls again."""
        await self._api.ask("POST", "/resume", timeout_s=self._api.quick_s)

    async def install(self, weights: dict[str, Tensor], version: PolicyVersion) -> None:
        """Serve other weights, and check that they compute usable logits. The engine must be paused; it runs
        afterwards.

        Raises `PolicyError` if they cannot be served; the old ones are then served. Raises `UpstreamError` if
        the engine failed or cannot read the files; it may then be paused, or serve weights that are no
        version.
        """
        before = self._label
        expected = await asyncio.to_thread(digests, weights)
        folder = await asyncio.to_thread(stage, weights, version, self._scratch)
        try:
            await self._prepare(str(folder / WEIGHTS), expected)
            await self._relabel(INSTALLING)
            await self._swap(before)
        except PolicyError:
            await self.resume()
            raise
        await self._reset_cache()
        await self.resume()
        if problem := await self._unusable(version.version):
            await self._put_back(before)
            raise PolicyError(problem)
        await self._relabel(label_of(self._policy_id, version.version))
        tidy(self._scratch, folder)

    async def _prepare(self, path: str, expected: dict[str, str]) -> None:
        answers = await self._call("harnessgym_prepare", path, json.dumps(expected))
        for answer in answers:
            if answer.get("reason") == "unreadable":
                hint = "It must see the folder of versions under the same path as the agent."
                raise UpstreamError(
                    f"The engine at {self._api.address} cannot read {path}: {answer['error']}. {hint}"
                )
            if "error" in answer:
                raise PolicyError(f"{answer['error']}.")

    async def _swap(self, before: str) -> None:
        answers = await self._call("harnessgym_swap")
        self._check_kept(answers)
        if failed := [answer["error"] for answer in answers if "error" in answer]:
            await self._back_on_all(before)
            raise PolicyError(f"vLLM cannot load it: {failed[0]}")

    async def _put_back(self, before: str) -> None:
        """Serve the weights from before the swap again."""
        await self.pause()
        await self._back_on_all(before)
        await self._reset_cache()
        await self.resume()

    async def _back_on_all(self, before: str) -> None:
        self._check_kept(await self._call("harnessgym_back"))
        await self._relabel(before)

    def _check_kept(self, answers: Sequence[dict[str, Any]]) -> None:
        if lost := [answer["lost"] for answer in answers if "lost" in answer]:
            raise UpstreamError(
                f"The engine at {self._api.address} has lost its weights; restart it. {lost[0]}"
            )

    async def _unusable(self, version: int) -> str | None:
        """What is wrong with the logprobs of one sampled token; None if nothing is."""
        body = {
            "prompt": [0],
            "max_tokens": 1,
            "temperature": 1.0,
            "logprobs": 0,
            "cache_salt": f"check:{version}",
        }
        try:
            answer = await self._api.ask("POST", "/v1/completions", body)
        except UpstreamLost:
            raise
        except UpstreamError as error:
            return f"The engine cannot sample with it: {error}"
        (logprob,) = answer["choices"][0]["logprobs"]["token_logprobs"]
        usable = logprob is not None and math.isfinite(logprob)
        return None if usable else f"The engine's logits are not finite with it (logprob {logprob})."

    async def _reset_cache(self) -> None:
        if not (await self._api.ask("POST", "/reset_prefix_cache"))["success"]:
            raise UpstreamError(
                f"The engine at {self._api.address} kept its prefix cache, which is of other weights."
            )

    async def _relabel(self, label: str) -> None:
        """Set the version label that the engine reports."""
        self._label = ""
        await self._api.ask("POST", "/update_weight_version", {"new_version": label})
        self._label = label

    async def _call(self, method: str, *args: str) -> list[dict[str, Any]]:
        """Call a method of the extension on every worker."""
        hint = f"with VLLM_SERVER_DEV_MODE=1, --worker-extension-cls {EXTENSION} and PYTHONPATH={PLUGIN}"
        answer = await self._api.ask(
            "POST", "/collective_rpc", {"method": method, "args": list(args)}, hint=hint
        )
        answers: list[dict[str, Any]] = answer["results"]
        return answers
