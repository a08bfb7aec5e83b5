"""Each formula against a transcription of its own: mpmath for functions, plain loops for the rest."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.scheduling.selection import Visit
from harnessgym.scheduling.selectors.dars import further
from harnessgym.scheduling.selectors.dart import count
from harnessgym.scheduling.selectors.difficulty import beliefs, best, digamma, log_beta, log_gamma, t_quantile
from harnessgym.scheduling.selectors.gdro import allot, moved, weights
from harnessgym.scheduling.selectors.insight import information, score
from harnessgym.scheduling.selectors.uniform import in_turn
from harnessgym.scheduling.selectors.vade import information_gain
from harnessgym.scheduling.selectors.xrpo import half_width
from tests.harnessgym.scheduling.selectors.visiting import pool, visit

POSITIVE = st.floats(1e-3, 1e5)


@settings(max_examples=60)
@given(x=POSITIVE, y=POSITIVE)
def test_gamma_functions_agree_with_mpmath(x, y):
    a, b = np.array([x]), np.array([y])
    assert log_gamma(a)[0] == pytest.approx(float(mp.loggamma(x)), rel=1e-12, abs=1e-11)
    assert digamma(a)[0] == pytest.approx(float(mp.digamma(x)), rel=1e-12, abs=1e-11)
    assert log_beta(a, b)[0] == pytest.approx(float(mp.log(mp.beta(x, y))), rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 31, 200])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.999])
def test_t_quantiles_agree_with_mpmath(degrees, probability):
    t = mp.mpf(t_quantile(probability, degrees))
    tail = mp.betainc(mp.mpf(degrees) / 2, mp.mpf(1) / 2, 0, degrees / (degrees + t**2), regularized=True) / 2
    assert float(1 - tail) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.5, 3), (2.5, 9), (40, 3)])
@pytest.mark.parametrize("rollouts", [2, 8])
def test_the_information_of_a_group_is_what_integration_gives(a, b, rollouts):
    """I(R; phi) = sum over r of the integral of p(phi) p(r|phi) ln(p(r|phi) / p(r))."""

    def likelihood(r, p):
        return mp.binomial(rollouts, r) * p**r * (1 - p) ** (rollouts - r)

    def density(p):
        return p ** (a - 1) * (1 - p) ** (b - 1) / mp.beta(a, b)

    total = mp.mpf(0)
    for r in range(rollouts + 1):
        marginal = mp.quad(lambda p, r=r: density(p) * likelihood(r, p), [0, 0.5, 1])
        total += mp.quad(
            lambda p, r=r, m=marginal: (
                density(p) * likelihood(r, p) * mp.log(likelihood(r, p) / m) if 0 < p < 1 else 0
            ),
            [0, 0.5, 1],
        )
    found = information(np.array([float(a)]), np.array([float(b)]), rollouts)[0]
    assert found == pytest.approx(float(total), abs=1e-6)
    mean = a / (a + b)
    expected = mean * (1 - mean) * math.exp(-3.0 * (mean - 0.3) ** 2) * found
    assert score(np.array([float(a)]), np.array([float(b)]), rollouts, 3.0, 0.3)[0] == pytest.approx(
        expected, rel=1e-12
    )


def test_information_shrinks_as_evidence_grows():
    scale = np.array([1.0, 2, 4, 8, 16, 1000])
    found = information(scale, scale, 8)
    assert (np.diff(found) < 0).all()
    assert found[-1] < 0.01


def test_the_gain_of_vade_is_greatest_at_one_third():
    p = np.linspace(0, 1, 3001)
    assert p[np.argmax(information_gain(p))] == pytest.approx(1 / 3, abs=1e-3)
    assert information_gain(np.array([0.0, 0.25, 1.0])).tolist() == [0.0, 0.25 * 0.75**2, 0.0]


@pytest.mark.parametrize("successes", range(9))
@pytest.mark.parametrize("schedule", ["equal", "hardness"])
@pytest.mark.parametrize("most", [16, 32, 64])
def test_the_further_rollouts_of_dars_are_those_of_its_formula(successes, schedule, most):
    """In exact fractions."""
    n, a = 8, Fraction(successes, 8)
    s = 2 * a * (1 - a) if a else Fraction(1, 2) / n
    target = Fraction(n, 2) * (2 * (1 - a) if schedule == "hardness" else 1)
    expected = 0 if a >= Fraction(1, 2) else max(0, min(math.ceil((target - n * s) / s), most - n))
    assert further(float(a), n, schedule, most) == expected


def test_dars_spends_nothing_further_from_one_half_on_and_most_on_failures():
    assert [further(a, 8, "hardness", 64) for a in (0.5, 0.6, 1.0)] == [0, 0, 0]
    found = [further(k / 8, 8, "hardness", 64) for k in range(5)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 56


def test_the_counts_of_dart_are_those_of_its_code():
    for rate in np.linspace(0, 1, 401):
        expected = 8 if rate < 0.6 else max(2, int(9 / rate - 7 + 1e-9))
        assert count(float(rate), 8) == expected, rate
    assert [count(rate, 16) for rate in (0.59, 0.6, 1.0)] == [16, 16, 2]


def test_the_weights_of_gdro_are_those_of_its_code():
    scores, rate, mix = [0.3, 0.9, 0.0], 0.1, 0.15
    raised = [math.exp(rate * value) for value in scores]
    expected = [(1 - mix) * value / sum(raised) + mix / 3 for value in raised]
    assert weights(np.array(scores), rate, mix) == pytest.approx(expected, rel=1e-12)
    assert weights(np.array([1e4, 0.0]), 0.1, 0.15).sum() == pytest.approx(1.0)


def test_a_bin_is_left_only_well_beyond_its_edge():
    assert moved(None, 0.31, 10, 0.02) == 3
    assert moved(2, 0.31, 10, 0.02) == 2
    assert moved(2, 0.33, 10, 0.02) == 3
    assert moved(3, 0.29, 10, 0.02) == 3
    assert moved(3, 0.27, 10, 0.02) == 2
    assert moved(0, 1.0, 10, 0.02) == 9
    assert moved(9, 0.0, 10, 0.02) == 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=3, unique=True),
    scores=st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=3),
    later=st.integers(0, 2),
    budget=st.integers(0, 40),
)
def test_sizes_are_the_best_of_all_that_keep_to_the_budget(sizes, scores, later, budget):
    """Against every choice there is."""
    scores = [np.array(own[: len(sizes)]) for own in scores]
    found = allot(scores, sizes, budget, later)

    def all_of(number):
        return (
            [()]
            if not number
            else [(*rest, place) for rest in all_of(number - 1) for place in range(len(sizes))]
        )

    def missed(choice):
        spent = sum(sizes[place] for place in choice)
        return min(abs(budget - spent - sum(sizes[place] for place in rest)) for rest in all_of(later))

    def worth(choice):
        return sum(float(own[place]) for own, place in zip(scores, choice, strict=True))

    every = all_of(len(scores))
    least = min(map(missed, every))
    mine = tuple(sizes.index(size) for size in found)
    assert missed(mine) == least
    assert worth(mine) == pytest.approx(max(worth(choice) for choice in every if missed(choice) == least))


def test_the_half_width_is_that_of_the_textbook():
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    s = math.sqrt(sum((r - 3 / 8) ** 2 for r in rewards) / 7)
    assert half_width(s, 8, 0.05) == pytest.approx(2.364624251592785 * s / math.sqrt(8), rel=1e-9)


@settings(max_examples=60)
@given(
    seen=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 5)), max_size=12),
    visit_decay=st.sampled_from([1.0, 0.5]),
    version_decay=st.sampled_from([1.0, 0.9]),
)
def test_beliefs_are_the_weighted_counts_of_all_visits(seen, visit_decay, version_decay):
    visits = [visit(f"t{task}", successes, 4, version) for task, successes, version in seen]
    known = beliefs(pool(3), visits, visit_decay=visit_decay, version_decay=version_decay)
    newest = max([version for *_, version in seen], default=0)
    for task in range(3):
        own = [(successes, version) for each, successes, version in seen if each == task]
        weighted = [
            visit_decay ** (len(own) - 1 - place)
            * version_decay ** (newest - version)
            * np.array([won, 4 - won])
            for place, (won, version) in enumerate(own)
        ]
        alpha, beta = 1 + sum(weighted, np.zeros(2))
        assert known.alpha_N[task] == pytest.approx(alpha)
        assert known.beta_N[task] == pytest.approx(beta)
        assert known.mean_N[task] == pytest.approx(alpha / (alpha + beta))


def test_what_is_not_graded_or_not_a_task_is_no_evidence_and_rewards_count_in_part():
    own = pool(1)
    visits = [
        Visit("t0", 4, 0, open=True),
        Visit("gone", 2, 0, (1.0, 1.0)),
        Visit("t0", 4, 0),
        Visit("t0", 3, 0, (-1, 0.25, 9)),
    ]
    known = beliefs(own, visits)
    assert (known.alpha_N[0], known.beta_N[0]) == (2.25, 2.75)


def test_the_best_are_taken_once_before_any_is_taken_twice():
    assert best(np.array([1.0, 3.0, 2.0]), np.zeros(3, dtype=np.int64), 4) == [1, 2, 0, 1]
    assert best(np.array([1.0, 3.0, 2.0]), np.array([0, 2, 1]), 3) == [0, 2, 0]


def test_every_epoch_has_every_task_once_in_an_order_of_its_own():
    own = pool(7)
    epochs = [[in_turn(own, 7 * epoch + place) for place in range(7)] for epoch in range(3)]
    assert all(sorted(epoch) == sorted(own.tasks) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
