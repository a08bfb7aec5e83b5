"""Corrections: as near to their references as docs/algorithms.md says, and what every one of them keeps
to.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.registry import load, names
from tests.suites.algorithms.corrections import MEASURES
from tests.suites.algorithms.tokens import tokens_of
from trainers.corrections.importance_sampling import icepop, mis, tis
from trainers.corrections.masks import geometric, opsm
from trainers.losses.tokens import Tokens

SEEDS = st.integers(0, 10_000)
SEQUENCE = [f"{name} of sequences" for name in ("icepop", "mis", "tis")]


def correction_of(name):
    name, _, sequences = name.partition(" of ")
    found = load("correction", name)
    settings = found(name=name, level="sequence") if sequences else found(name=name)
    return partial(load("correction", found.function), **settings.arguments)


@pytest.mark.parametrize("key", MEASURES)
def test_a_correction_is_its_reference(key):
    assert MEASURES[key]() < (1e-6 if "baseline" in key[1] else 1e-12)


@pytest.mark.parametrize("name", [*names("correction"), *SEQUENCE])
@given(seed=SEEDS, data=st.data())
def test_weights_carry_no_gradient_and_depend_on_no_other_rollout_nor_on_order(name, seed, data):
    tokens = tokens_of(seed, far=0.05 if name == "geometric" else 0.5)
    correction = correction_of(name)
    weights = correction(tokens)
    assert weights.shape == tokens.behaviour_N.shape
    assert not weights.requires_grad
    assert (weights >= 0).all()
    order = torch.tensor(data.draw(st.permutations(range(len(weights)))))
    for part in (order, order[tokens.rollout_N[order] == 0]):
        picked = Tokens(*(getattr(tokens, field)[part] for field in Tokens.__dataclass_fields__))
        torch.testing.assert_close(correction(picked), weights[part])


@pytest.mark.parametrize("name", [*names("correction"), *SEQUENCE])
@given(seed=SEEDS)
def test_nothing_is_corrected_where_all_policies_are_one(name, seed):
    assert (correction_of(name)(tokens_of(seed, far=0.0)) == 1).all()


def tokens_with(log_weights, rollouts, advantage=1.0):
    """Tokens whose proximal policy, which is also the current one, has these log-ratios to the one that
    sampled.
    """
    count = len(log_weights)
    mu = torch.full((count,), -100.0)
    pi = mu + torch.tensor(log_weights)
    return Tokens(pi, mu, pi, torch.full((count,), advantage), torch.tensor(rollouts), torch.arange(count))


def test_ratios_beyond_all_numbers_are_truncated_or_masked():
    tokens = tokens_with([90.0, 90.0, 0.0], [0, 0, 1])
    for level in ("token", "sequence"):
        assert tis(tokens, level).tolist() == [2.0, 2.0, 1.0]
        assert mis(tokens, level).tolist() == [0.0, 0.0, 1.0]
        assert icepop(tokens, level).tolist() == [0.0, 0.0, 1.0]


def test_a_mask_of_sequences_takes_all_tokens_of_a_rollout():
    tokens = tokens_with([0.6, 0.6, 0.6, 0.6], [0, 0, 1, 0])
    assert mis(tokens, "token", cap=2.0).count_nonzero() == 4
    assert (mis(tokens, "sequence", cap=2.0) > 0).tolist() == [False, False, True, False]


def test_a_geometric_mask_goes_by_the_mean_so_that_length_does_not_matter():
    tokens = tokens_with([0.2, -0.2, 0.005, 0.02], [0, 0, 1, 2])
    assert geometric(tokens).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert geometric(tokens, against="current").tolist() == [1.0, 1.0, 1.0, 0.0]


def test_opsm_masks_only_what_is_to_be_less_likely_where_the_policy_has_left():
    left = [-0.9, -0.3]
    assert opsm(tokens_with(left, [0, 0], -1.0), threshold=0.5).tolist() == [0.0, 0.0]
    assert opsm(tokens_with(left, [0, 0], 1.0), threshold=0.5).tolist() == [1.0, 1.0]
    assert opsm(tokens_with(left, [0, 1], -1.0), threshold=0.5).tolist() == [0.0, 1.0]
