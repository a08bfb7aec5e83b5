"""One published step: how many weights changed, how many bytes that takes, and what it costs. Verified bit
by bit.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from trainers.weights.chain import read_from, read_version
from trainers.weights.delta import Delta, apply, encode, flat_bytes
from trainers.weights.publish import BaseVersion, publish, publish_full

Weights = Mapping[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One step's figures. Bytes are of the tensors or payloads, without manifests."""

    step: int
    rho: float
    """Share of the elements whose bits changed."""
    bytes_full: int
    bytes_raw: int
    """int32 index and bfloat16 value of each change, as they are."""
    bytes_coded: int
    bytes_bound: float
    """Entropy bound: n H(rho) bits per tensor for positions, and the order-0 entropy of the new values."""
    encode_s: float
    """Processor seconds on one core."""
    decode_s: float
    publish_s: float
    """Wall seconds, checksums and fsync included."""
    publish_full_s: float
    install_s: float
    """Wall seconds to make the new weights of held ones, verified."""
    install_full_s: float

    @property
    def scanned_gb_s(self) -> float:
        """Bytes of weights over processor seconds of encoding and decoding."""
        return self.bytes_full / (self.encode_s + self.decode_s) / 1e9


def measure(step: int, old: dict[str, Tensor], new: dict[str, Tensor], root: Path) -> Step:
    """Publish `new` on `old` (version `step - 1` of `root`), install it, and compare every bit. Raises
    `AssertionError`.
    """
    began = time.process_time()
    coded = {name: encode(old[name], new[name]) for name in new}
    encode_s = time.process_time() - began
    target = {name: tensor.clone() for name, tensor in old.items()}
    began = time.process_time()
    for name, delta in coded.items():
        apply(delta, target[name])
    decode_s = time.process_time() - began
    _same(target, new)
    full, publish_full_s = _timed(lambda: publish_full(root / "full", step, None, new, step, "bench"))
    made, publish_s = _timed(
        lambda: publish(
            root, step, step - 1, new, step, "bench", base=BaseVersion(step - 1, old), full_every=1 << 30
        )
    )
    assert made.checksum == full.checksum
    (_, installed), install_s = _timed(lambda: read_from(step - 1, old, made.path))
    _same(installed, new)
    (_, whole), install_full_s = _timed(lambda: read_version(full.path))
    _same(whole, new)
    changed = {name: _changed(old[name], new[name]) for name in new}
    count = sum(len(values) for values in changed.values())
    return Step(
        step=step,
        rho=count / sum(tensor.numel() for tensor in new.values()),
        bytes_full=sum(tensor.nbytes for tensor in new.values()),
        bytes_raw=6 * count,
        bytes_coded=sum(len(delta.payload) for delta in coded.values()),
        bytes_bound=sum(_positions(len(changed[name]), new[name].numel()) for name in new) + _values(changed),
        encode_s=encode_s,
        decode_s=decode_s,
        publish_s=publish_s,
        publish_full_s=publish_full_s,
        install_s=install_s,
        install_full_s=install_full_s,
    )


def codings(old: Weights, new: Weights) -> dict[str, int]:
    """How many tensors each coding was chosen for."""
    found: dict[str, int] = {}
    for name in new:
        made: Delta = encode(old[name], new[name])
        kind = made.coding if made.payload else "unchanged"
        found[kind] = found.get(kind, 0) + 1
    return found


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _changed(old: Tensor, new: Tensor) -> np.ndarray:
    """The new bits of elements that changed, found without the codec."""
    one, other = old.view(torch.int16).numpy().reshape(-1), new.view(torch.int16).numpy().reshape(-1)
    return other[one != other].view(np.uint16)


def _positions(changed: int, size: int) -> float:
    """Least bytes for which of `size` elements changed: size * H(rho) bits."""
    rho = changed / size if size else 0.0
    if rho in (0.0, 1.0):
        return 0.0
    return size * -(rho * math.log2(rho) + (1 - rho) * math.log2(1 - rho)) / 8


def _values(changed: Mapping[str, np.ndarray]) -> float:
    """Order-0 entropy of all new values, in bytes."""
    counts = sum(np.bincount(values, minlength=1 << 16) for values in changed.values())
    seen = np.asarray(counts)[np.asarray(counts) > 0]
    return float(-(seen * np.log2(seen / seen.sum())).sum() / 8) if len(seen) else 0.0


def _same(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert np.array_equal(flat_bytes(one[name]), flat_bytes(tensor)), f"{name} differs"
