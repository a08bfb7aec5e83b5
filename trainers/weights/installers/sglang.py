"""SGLang, by its documented routes for weight updates.

Request and response shapes: SGLang's docs/advanced_features/sglang_for_rl.md,
python/sglang/srt/managers/io_struct.py and srt/entrypoints/http_server.py. `/update_weights_from_disk` rolls
back by itself when weights do not load. The label `weight_version` of `/model_info` tells which version is
served; a restarted engine has that of its `--weight-version`, or "default".
"""

import asyncio
import math
from pathlib import Path
from typing import Any

import httpx
from torch import Tensor

from harnessgym.errors import PolicyError, UpstreamError, UpstreamLost
from harnessgym.store.policies import PolicyVersion
from trainers.weights.installers.api import INSTALLING, EngineApi, label_of, stage, tidy, version_in


class SglangInstaller:
    """One SGLang server."""

    kind = "sglang"
    carries_over = False

    def __init__(self, api: EngineApi, policy_id: str, scratch: Path) -> None:
        self._api = api
        self._policy_id = policy_id
        self._scratch = scratch
        self._label = ""
        self._path = ""

    @property
    def version(self) -> int | None:
        """The served version, as last reported by the engine; None for weights that are no version."""
        return version_in(self._label, self._policy_id)

    async def look(self) -> None:
        """Query the served version. Raises `UpstreamLost` if the engine does not answer, `UpstreamError` if
        the answer has no version label.
        """
        self._label = ""
        info = await self._api.ask("GET", "/model_info", timeout_s=self._api.quick_s)
        self._label = str(info["weight_version"])
        self._path = str(info["model_path"])

    async def pause(self) -> None:
        """Abort the calls in flight, which return the tokens so far, and hold new ones until `resume`."""
        await self._api.ask("POST", "/pause_generation", {"mode": "abort"}, timeout_s=self._api.quick_s)

    async def resume(self) -> None:
        """Accept calls again."""
        await self._api.ask("POST", "/continue_generation", {}, timeout_s=self._api.quick_s)

    async def install(self, weights: dict[str, Tensor], version: PolicyVersion) -> None:
        """Serve other weights, and check that they compute usable logits. The engine must be paused; it runs
        afterwards.

        Raises `PolicyError` if they cannot be served; the old ones are then served. Raises `UpstreamError` if
        the engine failed; it may then be paused, or serve weights that are no version.
        """
        before = self._label
        path = self._path
        folder = await asyncio.to_thread(stage, weights, version, self._scratch)
        await self._relabel(INSTALLING)
        answer = await self._load(str(folder), INSTALLING)  # no version until it is checked
        if not answer["success"]:
            await self._relabel(before)
            await self.resume()
            raise PolicyError(f"SGLang cannot load it: {answer['message']}")
        await self._flush_cache()
        await self.resume()
        if problem := await self._unusable(version.version):
            await self._put_back(path, before)
            raise PolicyError(problem)
        await self._relabel(label_of(self._policy_id, version.version))
        self._path = str(folder)
        tidy(self._scratch, folder)

    async def _load(self, path: str, label: str) -> dict[str, Any]:
        body = {
            "model_path": path,
            "load_format": "safetensors",
            "weight_version": label,
            "flush_cache": True,
        }
        return await self._api.ask("POST", "/update_weights_from_disk", body, refusal=httpx.codes.BAD_REQUEST)

    async def _put_back(self, path: str, label: str) -> None:
        """Serve the weights at `path` again."""
        self._label = ""
        await self.pause()
        answer = await self._load(path, label)
        if not answer["success"]:
            raise UpstreamError(
                f"The engine at {self._api.address} has lost its weights; restart it. {answer['message']}"
            )
        await self._flush_cache()
        await self.resume()
        self._label = label

    async def _unusable(self, version: int) -> str | None:
        """What is wrong with the logprobs of one sampled token; None if nothing is."""
        parameters = {"max_new_tokens": 1, "temperature": 1.0}
        body = {
            "input_ids": [0],
            "sampling_params": parameters,
            "return_logprob": True,
            "extra_key": f"check:{version}",
        }
        try:
            answer = await self._api.ask("POST", "/generate", body)
        except UpstreamLost:
            raise
        except UpstreamError as error:
            return f"The engine cannot sample with it: {error}"
        ((logprob, *_),) = answer["meta_info"]["output_token_logprobs"]
        usable = logprob is not None and math.isfinite(logprob)
        return None if usable else f"The engine's logits are not finite with it (logprob {logprob})."

    async def _flush_cache(self) -> None:
        """Drop cached keys and values of other weights. Raises `UpstreamError` if the engine keeps them."""
        await self._api.ask("POST", "/flush_cache")

    async def _relabel(self, label: str) -> None:
        """Set the version label that the engine reports."""
        self._label = ""
        await self._api.ask(
            "POST", "/update_weight_version", {"new_version": label, "abort_all_requests": False}
        )
        self._label = label
