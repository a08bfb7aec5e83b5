"""What the trainer takes and gives up."""

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.consumption import Candidate, choose

CANDIDATES = st.lists(
    st.builds(Candidate, st.uuids().map(str), st.integers(0, 99), st.booleans(), st.integers(0, 4)),
    max_size=12,
    unique_by=(lambda item: item.id, lambda item: item.ordinal),
)


@given(CANDIDATES, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["wait", "drop", "requeue"]))
def test_a_choice_is_a_whole_fresh_batch_and_whatever_is_too_stale(candidates, batch, eta, policy):
    choice = choose(candidates, batch, eta, policy)
    by_id = {item.id: item for item in candidates}
    taken = [by_id[name] for name in choice.take]
    assert len(taken) in (0, batch)
    assert all(item.complete and item.staleness <= eta for item in taken)
    assert [item.ordinal for item in taken] == sorted(item.ordinal for item in taken)
    given_up = {*choice.drop, *choice.requeue}
    assert given_up == {item.id for item in candidates if item.complete and item.staleness > eta}
    assert not (choice.drop if policy == "requeue" else choice.requeue)


def group(ordinal, *, complete=True, staleness=0):
    return Candidate(f"g{ordinal}", ordinal, complete, staleness)


def test_only_waiting_waits_for_a_gap():
    line = [group(0), group(1, complete=False), group(2), group(3)]
    assert choose(line, 2, 1, "wait").take == ()
    assert choose(line, 2, 1, "drop").take == ("g0", "g2")
    assert choose([group(1), group(0), *line[1:2]], 2, 1, "wait").take == ("g0", "g1")


def test_what_is_too_stale_is_dropped_or_requeued_and_the_next_ones_are_taken():
    line = [group(0, staleness=3), group(1), group(2)]
    assert choose(line, 2, 2, "requeue") == choose(line, 2, 2, "requeue")
    assert choose(line, 2, 2, "requeue").requeue == ("g0",)
    assert choose(line, 2, 2, "drop").drop == ("g0",)
    assert choose(line, 2, 2, "drop").take == ("g1", "g2")
