"""Tokens of whole rollouts: sums, means, what came before, and when a token was sampled."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.traces.trajectories import Row, Turn
from tests.suites.algorithms.tokens import tokens_of
from trainers.losses.tokens import sampling_times


@given(st.integers(0, 10_000))
def test_what_is_taken_over_rollouts_is_a_loop_over_them(seed):
    tokens = tokens_of(seed)
    values = tokens.advantages_N * tokens.behaviour_N
    for rollout in set(tokens.rollout_N.tolist()):
        own = tokens.rollout_N == rollout
        torch.testing.assert_close(tokens.rollout_sum(values)[own], values[own].sum().expand(int(own.sum())))
        torch.testing.assert_close(
            tokens.rollout_mean(values)[own], values[own].mean().expand(int(own.sum()))
        )
        before = tokens.least_before(values, first=7.0)[own].tolist()
        assert before == [7.0, *(float(values[own][: index + 1].min()) for index in range(len(before) - 1))]


def row(length, *turns):
    zeros = np.zeros(length, dtype=np.int32)
    return Row(
        "r", "g", zeros, zeros, zeros.astype(np.float32), zeros, tuple(Turn(*turn, "agent") for turn in turns)
    )


def test_tokens_are_in_the_order_of_their_calls_whatever_row_they_are_in():
    """A sub-agent's row between two calls of the row that asked for it."""
    main, helper = row(10, (2, 4, "a"), (6, 8, "c")), row(6, (3, 5, "b"))
    times = sampling_times([helper, main])
    sampled = [*times[0][3:5], *times[1][2:4], *times[1][6:8]]
    assert np.argsort(sampled).tolist() == [2, 3, 0, 1, 4, 5]


def test_without_calls_tokens_are_in_the_order_of_the_row():
    assert sampling_times([row(4)])[0].tolist() == [0, 1, 2, 3]
