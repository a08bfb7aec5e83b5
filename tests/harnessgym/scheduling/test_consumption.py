from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.consumption import (
    Candidate,
    Choice,
    Replayable,
    choose,
    places_for_replays,
    replay,
)

POLICIES = st.sampled_from(["wait", "drop", "requeue"])


def groups(*items):
    """Candidates in order: None is still open, a number the staleness of a complete one."""
    return [Candidate(f"g{place}", place, item is not None, item or 0) for place, item in enumerate(items)]


def test_waiting_keeps_the_order_and_the_gap():
    assert choose(groups(0, 0, 0), 2, 1, "wait") == Choice(("g0", "g1"), (), ())
    assert choose(groups(0, None, 0), 2, 1, "wait") == Choice((), (), ())


def test_waiting_drops_what_is_too_stale_all_the_same():
    assert choose(groups(2, 0, 0), 2, 1, "wait") == Choice(("g1", "g2"), ("g0",), ())


def test_an_open_group_holds_up_no_other_where_order_does_not_count():
    for policy in ("drop", "requeue"):
        assert choose(groups(None, 1, None, 0), 2, 1, policy).take == ("g1", "g3")
        assert choose(groups(None, 1, None, None), 2, 1, policy) == Choice((), (), ())


def test_what_is_too_stale_is_dropped_or_submitted_again():
    assert choose(groups(2, None, 0), 1, 1, "drop") == Choice(("g2",), ("g0",), ())
    assert choose(groups(2, None, 0), 1, 1, "requeue") == Choice(("g2",), (), ("g0",))


def test_an_open_group_whose_tokens_are_too_old_is_given_up_where_order_does_not_count():
    opened = [
        Candidate("old", 0, complete=False, staleness=2),
        Candidate("young", 1, complete=False, staleness=1),
    ]
    assert choose(opened, 1, 1, "drop") == Choice((), ("old",), ())
    assert choose(opened, 1, 1, "requeue") == Choice((), (), ("old",))
    assert choose(opened, 1, 1, "wait") == Choice((), (), ())


def test_the_order_of_submission_counts_and_not_that_of_the_argument():
    assert choose(groups(0, 0, 0)[::-1], 2, 1, "drop").take == ("g0", "g1")


@given(st.lists(st.none() | st.integers(0, 4), max_size=12), st.integers(1, 4), st.integers(0, 3), POLICIES)
def test_a_batch_is_whole_fresh_and_complete_and_every_stale_group_is_given_up(items, batch, eta, policy):
    candidates = groups(*items)
    found = choose(candidates, batch, eta, policy)
    by_id = {item.id: item for item in candidates}
    assert len(found.take) in (0, batch)
    assert all(by_id[name].complete and by_id[name].staleness <= eta for name in found.take)
    assert {*found.drop, *found.requeue} == {
        item.id for item in candidates if item.complete and item.staleness > eta
    }
    assert not (found.requeue if policy != "requeue" else found.drop)
    fresh = [item for item in candidates if item.complete and item.staleness <= eta]
    if policy != "wait":
        assert bool(found.take) == (len(fresh) >= batch)
    assert list(found.take) == sorted(found.take, key=lambda name: by_id[name].ordinal)


def test_groups_trained_least_often_are_replayed_first_and_those_with_least_time_before_others():
    trained = [
        Replayable("a", 0, 2, 1),
        Replayable("b", 1, 1, 1),
        Replayable("c", 2, 1, 2),
        Replayable("d", 3, 1, 3),
    ]
    assert replay(trained, 2, 2) == ("c", "b", "a")
    assert replay(trained, 1, 9) == ("d", "c", "b")
    assert replay(trained, 0, 9) == ()


def test_replays_leave_every_group_that_stands_its_time():
    assert places_for_replays([0, 0], 4, 2, 1, 9) == 2
    assert places_for_replays([1, 1, 1, 1], 4, 2, 1, 9) == 0
    assert places_for_replays([1, 1, 1, 0], 4, 2, 1, 9) == 1
    assert places_for_replays([0, 0], 4, 2, 0, 9) == 2
    assert places_for_replays([0] * 4, 4, 2, 0, 9) == 0
    assert places_for_replays([0] * 4, 4, 2, 9, 1) == 0, "there is no later batch"
    assert places_for_replays([0] * 7, 4, 2, 9, 2) == 1


@given(
    st.lists(st.integers(0, 4), max_size=20).map(lambda ages: sorted(ages, reverse=True)),
    st.integers(1, 5),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(1, 6),
)
def test_replays_make_no_group_too_stale_that_would_not_be_without_them(ages, batch, at_most, eta, left):
    places = places_for_replays(ages, batch, at_most, eta, left)
    assert 0 <= places <= min(at_most, batch)
    waiting, step = list(ages), 0
    while waiting and places:
        taken, waiting = (
            waiting[: batch - (places if step == 0 else 0)],
            waiting[batch - (places if step == 0 else 0) :],
        )
        assert step == 0 or all(age + step <= eta for age in taken)
        assert step < left
        step += 1
