import numpy as np

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store.policies import PolicyVersion


def chain(*links, orphaned=()):
    return VersionChain(
        PolicyVersion(version, parent, "full", "", version, "", 0, True, version in orphaned)
        for version, parent in links
    )


STRAIGHT = chain((0, None), (1, 0), (2, 1), (3, 2))


def test_it_is_the_version_being_trained_minus_the_version_that_sampled():
    assert STRAIGHT.between(3, 1) == 2
    assert STRAIGHT.between(3, 3) == 0


def test_of_a_batch_it_is_that_of_its_oldest_sampled_token():
    rows = [np.array([-1, 2, 3]), np.array([-1, -1]), np.array([1, 3])]
    assert STRAIGHT.oldest(3, rows) == 2


def test_a_batch_without_sampled_tokens_is_not_stale():
    assert STRAIGHT.oldest(3, [np.array([-1, -1])]) == 0
    assert STRAIGHT.oldest(3, []) == 0


def test_numbers_of_orphaned_versions_do_not_count_and_their_tokens_count_from_the_fork():
    forked = chain((0, None), (1, 0), (2, 1), (3, 2), (4, 1), orphaned=(2, 3))
    assert forked.between(4, 1) == 1
    assert forked.between(4, 3) == 1
    assert not forked.survives(3)
