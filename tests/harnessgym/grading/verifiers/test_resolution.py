"""The rules by which tests say that an issue is resolved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.log import LogStatus
from harnessgym.grading.verifiers.swe_bench import Expectation, resolution, status_of

P, F, E, S, X = LogStatus.PASSED, LogStatus.FAILED, LogStatus.ERROR, LogStatus.SKIPPED, LogStatus.XFAIL
IDS = st.sampled_from([f"t.py::test_{letter}" for letter in "abcdefgh"])
STATUSES = st.dictionaries(IDS, st.sampled_from(list(LogStatus)))
LISTS = st.lists(IDS, unique=True, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("status", "fixed", "kept"), [(P, 1, 1), (X, 1, 1), (S, 0, 1), (F, 0, 0), (E, 0, 0), (None, 0, 0)]
)
def test_what_a_status_means_for_a_repaired_and_for_a_kept_test(status, fixed, kept):
    statuses = {} if status is None else {"a": status}
    assert resolution(statuses, Expectation(("a",))).resolved == bool(fixed)
    assert resolution(statuses, Expectation((), ("a",))).resolved == bool(kept)


@pytest.mark.parametrize(("status", "good"), [(P, 1), (X, 1), (S, 1), (F, 0), (E, 1), (None, 1)])
def test_where_failures_alone_are_told_the_rest_has_passed(status, good):
    statuses = {} if status is None else {"a": status}
    for expected in (Expectation(("a",), (), "fail_only"), Expectation((), ("a",), "fail_only")):
        assert resolution(statuses, expected).resolved == bool(good)


def test_cut_off_ids_stand_for_tests_that_agree():
    statuses = {"t[log(photon / s)]": P, "t[log(photon / m)]": X, "u[a b]": P, "u[a c]": F}
    assert status_of("t[log(photon", statuses) in (P, X)
    assert status_of("u[a", statuses) is None
    assert status_of("t", statuses) is None  # no bracket is open: the whole name is meant
    assert status_of("u[a b]", statuses) is P
    assert not resolution(statuses, Expectation(("u[a",))).resolved
    assert resolution({"u[a b]": S}, Expectation((), ("u[a",))).resolved


def test_parts_are_of_each_list():
    found = resolution({"a": P, "b": F, "c": P}, Expectation(("a", "b"), ("c", "d", "e", "f")))
    assert (found.f2p, found.p2p, found.resolved) == (0.5, 0.25, False)
    assert (found.f2p_passed, found.f2p_failed, found.p2p_failed) == (("a",), ("b",), ("d", "e", "f"))
    assert resolution({}, Expectation(())).f2p == 1.0


@given(statuses=STATUSES, f2p=LISTS, p2p=LISTS)
def test_every_expected_test_is_counted_once(statuses, f2p, p2p):
    found = resolution(statuses, Expectation(f2p, p2p))
    assert sorted(found.f2p_passed + found.f2p_failed) == sorted(f2p)
    assert sorted(found.p2p_passed + found.p2p_failed) == sorted(p2p)
    assert found.resolved == (found.f2p == 1.0 and found.p2p == 1.0)
    assert 0.0 <= found.f2p <= 1.0


@given(statuses=STATUSES, f2p=LISTS, p2p=LISTS, test=IDS)
def test_a_further_pass_never_makes_it_worse(statuses, f2p, p2p, test):
    expected = Expectation(f2p, p2p)
    before, after = resolution(statuses, expected), resolution({**statuses, test: P}, expected)
    assert after.f2p >= before.f2p
    assert after.p2p >= before.p2p


@given(statuses=STATUSES, f2p=LISTS, p2p=LISTS)
def test_tests_that_nobody_expects_change_nothing(statuses, f2p, p2p):
    expected = Expectation(f2p, p2p)
    assert resolution({**statuses, "other::x": F}, expected) == resolution(statuses, expected)
