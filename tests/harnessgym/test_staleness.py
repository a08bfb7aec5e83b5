import numpy as np

from harnessgym.staleness import batch_staleness, token_staleness


def test_token_staleness_is_the_version_difference():
    assert token_staleness(7, 5) == 2


def test_batch_staleness_is_that_of_its_oldest_sampled_token():
    rows = [np.array([-1, 4, 5]), np.array([-1, -1]), np.array([3, 5])]
    assert batch_staleness(5, rows) == 2


def test_a_batch_without_sampled_tokens_is_not_stale():
    assert batch_staleness(5, [np.array([-1, -1])]) == 0
    assert batch_staleness(5, []) == 0
