import math

import numpy as np
import pytest
import torch

from benchmarks.sync import deltas, transfer
from trainers.weights.publish import publish_full


def two_steps():
    old = {
        "a": torch.randn(30_000, generator=torch.Generator().manual_seed(0)).bfloat16(),
        "b": torch.ones(4).bfloat16(),
    }
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a"][::100] += 1
    return old, new


def test_a_measured_step_has_its_density_and_is_near_the_entropy_bound(tmp_path):
    old, new = two_steps()
    publish_full(tmp_path, 0, None, old, 0, "bench")
    step = deltas.measure(1, old, new, tmp_path)
    changed = sum(int((old[name] != new[name]).sum()) for name in old)
    assert step.rho == pytest.approx(changed / 30_004)
    assert (step.bytes_full, step.bytes_raw) == (60_008, 6 * changed)
    assert step.bytes_coded < step.bytes_raw < step.bytes_full
    assert deltas.codings(old, new) == {"gap16": 1, "unchanged": 1}


def test_the_bound_is_the_entropy():
    assert deltas._positions(50, 100) == pytest.approx(100 / 8)
    assert deltas._positions(0, 100) == deltas._positions(100, 100) == 0.0
    even = {"a": np.repeat(np.arange(16, dtype=np.uint16), 3)}
    assert deltas._values(even) == pytest.approx(48 * math.log2(16) / 8)
    assert deltas._values({"a": np.empty(0, np.uint16)}) == 0.0


def test_other_bits_end_the_benchmark():
    with pytest.raises(AssertionError, match="a differs"):
        deltas._same({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])})


def test_a_transfer_counts_the_bytes_that_came(tmp_path):
    full, delta = transfer.measure(*two_steps(), tmp_path, (1_000,))
    assert delta["bytes"] < full["bytes"] / 10
    assert full["total_s"] >= full["fetch_s"] >= full["bytes"] / 125e6 * 0.9


def test_above_the_break_even_rate_full_versions_are_sooner():
    full = {"bytes": 100e6, "publish_s": 1.0, "install_s": 0.5}
    delta = {"bytes": 10e6, "publish_s": 2.0, "install_s": 0.5}
    rate = transfer.break_even_mbit_s(full, delta)
    assert rate == pytest.approx(720)
    times = [item["publish_s"] + item["install_s"] + 8e-6 * item["bytes"] / rate for item in (full, delta)]
    assert times[0] == pytest.approx(times[1])
    assert transfer.break_even_mbit_s(full, delta | {"publish_s": 0.5}) is None
