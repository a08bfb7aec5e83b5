"""Worker extension with which the weight agent installs a version in vLLM: `--worker-extension-cls
harnessgym_vllm.Weights`.

This file runs in vLLM's environment and imports nothing of this project. The agent calls its methods through
`/collective_rpc`, on every worker, while the engine is paused. They never raise: an exception in a worker
ends the engine. An answer without an "error" means that it worked.

vLLM's own `reload_weights` does the loading: it knows fused and sharded parameters and quantisation. Two
things are added. Weights that do not fit are refused before any weight changes, because a reload that fails
half-way leaves a model that cannot run. And packed copies of shared weights are made again: vLLM 0.32's CPU
build keeps one of a tied output projection, and would compute logits with the old copy after a reload.
"""

import hashlib
import json
import mmap
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open


class Weights:
    """Mixed into vLLM's worker class, which has `rank`, `model_runner`, `vllm_config` and
    `reload_weights`.
    """

    rank: int
    model_runner: Any
    vllm_config: Any
    reload_weights: Any

    def harnessgym_prepare(self, path: str, digests: str) -> dict[str, Any]:
        """Open a safetensors file for `harnessgym_swap`, and refuse weights that must not be served.

        `digests` is JSON: SHA-256 in hex by tensor name. Each worker verifies its share of them. "error" says
        what is wrong: "unreadable" if nothing is at `path`, else "unfit" (other bytes, names or shapes, or a
        value that is not finite).
        """
        try:
            weights_file = _File(path)
        except Exception as error:  # noqa: BLE001 - an exception would end the engine
            return {"error": f"{type(error).__name__}: {error}", "reason": "unreadable"}
        try:
            _verify(weights_file, json.loads(digests), self.rank, self.vllm_config.parallel_config.world_size)
            _compare(weights_file, self._harnessgym_expected())
        except Exception as error:  # noqa: BLE001
            return {"error": str(error), "reason": "unfit"}
        self.__dict__["harnessgym_next"] = weights_file
        return {}

    def harnessgym_swap(self) -> dict[str, Any]:
        """Serve the prepared weights. If they do not load, the previous ones are loaded again; "lost" says
        that this failed too.
        """
        wanted = self.__dict__.pop("harnessgym_next")
        served = self.__dict__.get("harnessgym_served")
        self.__dict__["harnessgym_back_to"] = None
        try:
            self._harnessgym_reload(wanted)
        except Exception:  # noqa: BLE001
            return {"error": traceback.format_exc(limit=-1), **self._harnessgym_return(served)}
        self.__dict__.update(harnessgym_served=wanted, harnessgym_back_to=(served,))
        return {}

    def harnessgym_back(self) -> dict[str, Any]:
        """Undo the last swap, on workers where it succeeded."""
        back_to = self.__dict__.pop("harnessgym_back_to", None)
        return {} if back_to is None else self._harnessgym_return(*back_to)

    def _harnessgym_return(self, wanted: "_File | None") -> dict[str, Any]:
        """Load earlier weights again; None means those that the engine started with."""
        try:
            self._harnessgym_reload(wanted)
        except Exception:  # noqa: BLE001
            return {"lost": traceback.format_exc(limit=-1)}
        self.__dict__["harnessgym_served"] = wanted
        return {}

    def _harnessgym_reload(self, wanted: "_File | None") -> None:
        model = self.model_runner.get_model()
        _end_unfinished(model, self.vllm_config.model_config)
        self.reload_weights(
            weights_iterator=self._harnessgym_starting() if wanted is None else wanted.tensors()
        )
        with torch.no_grad():
            for module in model.modules():
                weight = module._parameters.get("weight")  # noqa: SLF001 - by name, without those of children
                if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
                    module.quant_method.process_weights_after_loading(module)

    def _harnessgym_starting(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """The weights that the engine started with, read again from their source."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(self.vllm_config.load_config)
        return iter(loader.get_all_weights(self.vllm_config.model_config, self.model_runner.get_model()))

    def _harnessgym_expected(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name of the tensors that a version must have: those that the engine started with."""
        known = self.__dict__.get("harnessgym_shapes")
        if known is None:
            tied = getattr(self.vllm_config.model_config.hf_config, "tie_word_embeddings", False)
            every = {name: tuple(tensor.shape) for name, tensor in self._harnessgym_starting()}
            known = {
                name: shape
                for name, shape in every.items()
                if "inv_freq" not in name and not (tied and "lm_head." in name)
            }
            self.__dict__["harnessgym_shapes"] = known
        return known


class _File:
    """An open safetensors file. It is mapped into memory, so it stays readable after its name is removed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle: Any = safe_open(path, framework="pt")
        with open(path, "rb") as file:
            self.bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        length = int.from_bytes(self.bytes[:8], "little")
        header = json.loads(bytes(self.bytes[8 : 8 + length]))
        header.pop("__metadata__", None)
        self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        self._at = {
            name: tuple(8 + length + offset for offset in entry["data_offsets"])
            for name, entry in header.items()
        }

    def digest(self, name: str) -> str:
        """SHA-256 of a tensor's bytes, in hex."""
        begin, end = self._at[name]
        return hashlib.sha256(self.bytes[begin:end]).hexdigest()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in host memory."""
        tensor: torch.Tensor = self._handle.get_tensor(name)
        return tensor

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All of them, by name."""
        return ((name, self.tensor(name)) for name in self.shapes)


def _verify(given: _File, digests: dict[str, str], rank: int, world: int) -> None:
    if set(digests) != set(given.shapes):
        raise ValueError(
            f"{given.path} holds other tensors than were published: {min(set(digests) ^ set(given.shapes))}"
        )
    for name in sorted(digests)[rank::world]:
        if given.digest(name) != digests[name]:
            raise ValueError(f"{given.path}: the bytes of {name} are not those that were published")
        tensor = given.tensor(name)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise ValueError(f"{name} is not finite everywhere")


def _compare(given: _File, expected: dict[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        if name not in given.shapes:
            raise ValueError(f"{name} is missing")
        if given.shapes[name] != shape:
            raise ValueError(
                f"{name} has shape {list(given.shapes[name])}, the engine's model has {list(shape)}"
            )


def _end_unfinished(model: Any, model_config: Any) -> None:
    """Restore the modules that a reload left unfinished when it failed half-way."""
    from vllm.model_executor.model_loader.reload.layerwise import (
        finalize_layerwise_reload,
        get_layerwise_info,
    )

    unfinished = [info for module in model.modules() if (info := get_layerwise_info(module)).can_load()]
    for info in unfinished:
        info.loaded_weights.clear()
        info.load_numel = 0
    if unfinished:
        finalize_layerwise_reload(model, model_config)
