"""No tensor of the CPU meets one of the policy's device in a step of the engine.

There is no GPU here, so tensors are followed instead: those made of arrays or without a device count as the CPU's
until they are moved by `to`, and all others as the policy's. What this shows is that every tensor goes where it
should; that kernels of a GPU compute the same it cannot show.
"""

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
    getattr(torch, name) for name in ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros")
}  # fmt: skip
READS = {torch.Tensor.numpy}
"""Operations that only the CPU's tensors have."""
MOVES = {torch.Tensor.copy_}
"""Operations between devices."""


class Identities:
    """A set of tensors, by identity."""

    def __init__(self):
        self._held = {}

    def add(self, tensor):
        self._held[id(tensor)] = tensor  # kept alive, so that no other gets its id

    def __contains__(self, tensor):
        return id(tensor) in self._held


class DeviceTracker(TorchFunctionMode):
    """Notes operations that would fail if the policy were on another device than the CPU."""

    def __init__(self):
        super().__init__()
        self.wrong = []
        self.followed = 0
        self._cpu = Identities()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            self._check(function, args, kwargs)
        elif function is torch.Tensor.to and any(isinstance(each, torch.device) for each in args):
            result = result.view_as(result)  # a tensor of its own, now of the device
            self.followed += 1
        elif function is torch.Tensor.cpu:
            result = result.view_as(result)
            self._cpu.add(result)
        elif (
            function is torch.from_numpy
            or (function in FACTORIES and kwargs.get("device") is None)
            or self._check(function, args, kwargs)
        ):
            self._cpu.add(result)
        return result

    def _check(self, function, args, kwargs):
        """Notes a mixture; returns whether all tensors are the CPU's."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        cpu = [tensor in self._cpu for tensor in tensors]
        # Single numbers may come from anywhere.
        mixed = any(ours and tensor.dim() for ours, tensor in zip(cpu, tensors, strict=True)) and not all(cpu)
        if (mixed and function not in MOVES) or (function in READS and not all(cpu)):
            self.wrong.append(getattr(function, "__name__", str(function)))
        return bool(tensors) and all(cpu)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_keeps_to_the_device_of_the_policy(family, folders):  # noqa: F811
    engine = build_engine(load_served(folders(family)[1]), max_batch=3, cached_sequences=3)
    tracker = DeviceTracker()
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
    "mistake", [lambda x: x + torch.arange(3), lambda x: x[torch.zeros(3).long()], lambda x: x.numpy()]
)
def test_a_mistake_would_be_noted(mistake):
    with DeviceTracker() as tracker:
        own = torch.zeros(3, device=torch.device("cpu"))
        mistake(own.to(torch.device("cpu")))
    assert len(tracker.wrong) == 1
