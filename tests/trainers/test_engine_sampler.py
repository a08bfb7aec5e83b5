import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engine.rows import sample, truncate

FLOATS = st.floats(-8, 8, allow_nan=False, width=32)


def draw(logits, *, temperature=1.0, top_k=0, top_p=1.0, uniform=None):
    count = len(logits)
    uniform = (
        np.random.default_rng(0).random(count, dtype=np.float32)
        if uniform is None
        else np.asarray(uniform, np.float32)
    )
    full = np.full(count, temperature, np.float32), np.full(count, top_k), np.full(count, top_p, np.float32)
    return sample(logits, *full, uniform)


def kept_by_definition(scores, top_k, top_p):
    """Top-k, then the smallest set of the likeliest whose renormalised mass reaches top-p; ties with the
    last member stay.
    """
    order = np.sort(np.asarray(scores, np.float64))[::-1]
    order = order[order >= order[min(top_k or len(order), len(order)) - 1]]
    mass = np.exp(order - order.max())
    before = np.cumsum(mass / mass.sum()) - mass / mass.sum()
    floor = order[max(1, int((before < top_p).sum())) - 1] if top_p < 1 else order[-1]
    return np.asarray(scores) >= floor


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=2, max_size=12), st.integers(0, 14), st.floats(0.05, 1.0))
def test_truncation_keeps_top_k_then_top_p(scores, top_k, top_p):
    row = torch.tensor([scores])
    kept = truncate(row, torch.tensor([top_k]), torch.tensor([top_p])).isfinite()[0].numpy()
    near = [kept_by_definition(scores, top_k, top_p * factor) for factor in (1 - 1e-5, 1, 1 + 1e-5)]
    assert any((kept == expected).all() for expected in near)


def test_frequencies_match_the_reported_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -2.0]]).expand(40_000, -1)
    for options in (
        {},
        {"temperature": 0.7},
        {"top_k": 3},
        {"top_p": 0.8},
        {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
    ):
        found = draw(logits, **options)
        frequency = torch.bincount(found.tokens, minlength=6) / len(logits)
        assert (frequency - found.probs_BV[0]).abs().max() < 0.01
        assert torch.allclose(found.logprobs, found.probs_BV.gather(1, found.tokens[:, None])[:, 0].log())
        assert abs(float(found.probs_BV[0].sum()) - 1) < 1e-6


def test_temperature_0_takes_the_likeliest_with_logprob_0():
    logits = torch.randn(50, 30)
    found = draw(logits, temperature=0.0)
    assert found.logprobs.eq(0).all()
    assert torch.equal(found.tokens, logits.argmax(-1))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(FLOATS, min_size=1, max_size=8), st.sampled_from([0.0, 1e-7, 0.5, 1 - 2**-24]), st.integers(0, 3)
)
def test_the_ends_of_the_unit_interval_give_a_possible_token(scores, uniform, top_k):
    found = draw(torch.tensor([scores]), top_k=top_k, uniform=[uniform])
    assert found.logprobs.isfinite().all()


def test_a_row_is_sampled_as_if_it_were_alone():
    logits, uniform = torch.randn(5, 40), np.random.default_rng(1).random(5, dtype=np.float32)
    temperature, top_k, top_p = (
        np.float32([1, 0, 0.7, 1, 1.5]),
        np.array([0, 0, 5, 3, 0]),
        np.float32([1, 1, 0.9, 1, 0.5]),
    )
    together = sample(logits, temperature, top_k, top_p, uniform)
    for row in range(5):
        one = slice(row, row + 1)
        alone = sample(logits[one], temperature[one], top_k[one], top_p[one], uniform[one])
        assert torch.equal(alone.tokens, together.tokens[one])
        assert torch.allclose(alone.logprobs, together.logprobs[one], atol=1e-6)
