"""Importance weights against plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.corrections.importance_sampling import effective_sample_size, truncated

LOG_RATIOS = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=32)


@given(LOG_RATIOS, st.floats(0.5, 4.0, width=32))
def test_truncated_weights(log_ratios: list[float], cap: float) -> None:
    weights = truncated(torch.tensor(log_ratios), cap)
    expected = [min(math.exp(log_ratio), cap) for log_ratio in log_ratios]
    torch.testing.assert_close(weights, torch.tensor(expected))


def test_truncation_keeps_every_token_and_carries_no_gradient() -> None:
    log_ratio = torch.tensor([-50.0, 0.0, 50.0], requires_grad=True)
    weights = truncated(log_ratio)
    assert weights.shape == (3,)
    assert not weights.requires_grad
    assert weights[1] == 1.0
    assert weights[2] == 2.0


@given(LOG_RATIOS)
def test_effective_sample_size(log_ratios: list[float]) -> None:
    weights = [math.exp(log_ratio) for log_ratio in log_ratios]
    expected = sum(weights) ** 2 / sum(weight**2 for weight in weights) / len(weights)
    assert float(effective_sample_size(torch.tensor(log_ratios))) == pytest.approx(expected, rel=1e-4)


def test_effective_sample_size_at_its_ends() -> None:
    assert float(effective_sample_size(torch.full((9,), 3.0))) == pytest.approx(1.0)
    assert float(effective_sample_size(torch.tensor([1_000.0, 0.0, 0.0, 0.0]))) == pytest.approx(0.25)
    assert float(effective_sample_size(torch.tensor([]))) == 1.0
