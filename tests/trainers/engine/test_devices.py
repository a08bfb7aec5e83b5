"""No tensor of the CPU meets one of the policy's device in a step of the engine.

There is no GPU here, so tensors are followed instead: those made without a device count as the CPU's until they
are moved, and all others as the policy's. What this shows is that every tensor goes where it
should; that kernels of a GPU compute the same it cannot show.
"""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.trainers.engine.test_runner import HookedAsk, folders, prompts  # noqa: F401
from trainers.engine.engine import build_engine
from trainers.engine.sequence import SequenceSampling
from trainers.policies.loading import load_served

FAMILIES = ["native", "qwen2", "gemma3", "qwen3_moe", "gpt_oss", "qwen3_5", "granitemoehybrid"]
FACTORIES = {
    getattr(torch, name)
    for name in ("arange", "as_tensor", "empty", "eye", "full", "ones", "rand", "randn", "tensor", "zeros")
}
READS = {torch.Tensor.numpy}
"""Operations that only the CPU's tensors have."""
MOVES = {torch.Tensor.copy_}
"""Operations between devices."""


class TensorSet:
    """Tensors by identity. They are kept, so that no other gets the identity of one."""

    def __init__(self):
        self._held = {}

    def add(self, tensor):
        self._held[id(tensor)] = tensor

    def __contains__(self, tensor):
        return id(tensor) in self._held


class DeviceTracker(TorchFunctionMode):
    """Notes operations that would fail if the policy were on another device than the CPU."""

    def __init__(self, *own):
        """Tensors that are on the policy's device from the beginning."""
        super().__init__()
        self.wrong = []
        self.followed = 0
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._cpu, self._device = TensorSet(), TensorSet()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            self._check(function, args, kwargs)
        elif function is torch.Tensor.cpu or (function in FACTORIES and kwargs.get("device") is None):
            self._cpu.add(result := result.view_as(result))
        elif function in FACTORIES or (function is torch.Tensor.to and torch.device in map(type, args)):
            self._device.add(result := result.view_as(result))
            self.followed += 1
        else:
            (self._cpu if self._check(function, args, kwargs) else self._device).add(result)
        return result

    def _check(self, function, args, kwargs):
        """Notes a mixture; returns whether all tensors are the CPU's."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        cpu = [self._is_cpu(tensor) for tensor in tensors]
        # Single numbers may come from anywhere.
        mixed = any(there and tensor.dim() for there, tensor in zip(cpu, tensors, strict=True)) and not all(
            cpu
        )
        if (mixed and function not in MOVES) or (function in READS and not all(cpu)):
            self.wrong.append(getattr(function, "__name__", str(function)))
        return bool(tensors) and all(cpu)

    def _is_cpu(self, tensor):
        if tensor in self._cpu or tensor in self._device:
            return tensor in self._cpu
        # `from_numpy` is not reported here; what it makes cannot be resized.
        storage = tensor.untyped_storage()
        return not storage.resizable() and storage.data_ptr() not in self._own


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_keeps_to_the_device_of_the_policy(family, folders):  # noqa: F811
    engine = build_engine(load_served(folders(family)[1]), max_batch=3, cached_sequences=3)
    own = [*engine.policy.parameters(), *engine.policy.buffers()]
    if family == "native":
        own.append(engine.rows.cache.block)
    tracker = DeviceTracker(*own)
    engine.start()
    longest = HookedAsk(engine, prompts(20)[0], SequenceSampling(100), tracker.__enter__)
    assert longest.started.wait(60)
    asks = [
        HookedAsk(
            engine, prompts(9)[0], SequenceSampling(8, seed=1, temperature=0.7, top_k=9, top_p=0.9), None
        ),
        HookedAsk(engine, prompts(20)[0], SequenceSampling(8, temperature=0.0, logprobs=2), None),
        HookedAsk(engine, prompts(14)[0], SequenceSampling(8, prompt_logprobs=1), None),
    ]
    engine.install(engine.policy.published(), version=1).result(60)
    engine.check().result(60)
    for ask in (longest, *asks):
        ask.wait()
    engine.close()
    assert engine.failure is None
    assert tracker.wrong == []
    assert tracker.followed > 100


@pytest.mark.parametrize(
    "mistake",
    [
        lambda own: own + torch.arange(3),
        lambda own: own + torch.from_numpy(np.ones(3)),
        lambda own: own[torch.zeros(3).long()],
        lambda own: own.numpy(),
    ],
)
def test_a_mistake_would_be_noted(mistake):
    with DeviceTracker() as tracker:
        own = torch.as_tensor(np.zeros(3), device=torch.device("cpu")) * 2
        mistake(own)
        assert tracker.wrong
    with DeviceTracker() as tracker:
        (own + own)[own.long()].cpu().numpy()
        assert not tracker.wrong
