"""Figures over seeds."""

import random

import pytest

from harnessgym.simulation.comparison import compare
from harnessgym.simulation.outcome import LEAST_SEEDS, Spread


def test_the_interval_of_ten_values_leaves_one_out_at_each_end():
    found = Spread.of([5, 1, 9, 3, 7, 2, 8, 4, 6, 10])
    assert (found.median, found.low, found.high) == (5.5, 2, 9)


def test_few_values_give_their_range():
    for count in range(1, LEAST_SEEDS + 1):
        found = Spread.of(list(range(count)))
        assert (found.low, found.high) == (0, count - 1)


@pytest.mark.parametrize("count", [6, 9, 10, 20])
def test_the_interval_holds_the_median_as_often_as_it_says(count):
    rng, held = random.Random(0), 0
    for _ in range(2_000):
        found = Spread.of([rng.expovariate(1.0) for _ in range(count)])
        held += found.low <= 0.6931 <= found.high
    assert held / 2_000 >= 0.94


def test_every_arm_is_told_with_its_seeds(make_config):
    seen = []
    found = compare(make_config(), ["sync", "eta-2", "sync"], 2, lambda arm, step: seen.append((arm, step)))
    assert list(found.outcomes) == ["sync", "eta-2"]
    assert [outcome.seed for outcome in found.outcomes["sync"]] == [0, 1]
    assert seen == [(arm, step) for arm in ("sync", "eta-2") for _ in range(2) for step in range(1, 9)]
    told = found.to_dict()
    assert told["arms"]["sync"]["rollouts_per_s"]["low"] == min(
        each["rollouts_per_s"] for each in told["seeds"]["sync"]
    )
    assert told["seeds"]["sync"][0]["bound"]["engines"] > 0
