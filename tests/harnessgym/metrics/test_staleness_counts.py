from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.metrics.window import StalenessCounts
from harnessgym.store.recent import TrainedTokens


def entry(row_id, step, version, tokens, lag):
    return TrainedTokens(row_id, step, version, tokens, lag)


def test_tokens_by_staleness_of_all_steps_and_of_the_newest():
    counts = StalenessCounts()
    counts.add([entry("1", 1, 1, 5, 0), entry("2", 1, 1, 7, 1)])
    counts.add([entry("3", 2, 2, 4, 1)])
    assert counts.all == Counter({0: 5, 1: 11})
    assert counts.newest == Counter({1: 4})
    assert counts.last_id == "3"


def test_steps_that_were_given_up_do_not_count():
    """Killed after step 3, gone on from step 1: step 2 is done again, as version 4."""
    counts = StalenessCounts()
    counts.add([entry(str(step), step, step, 10, 0) for step in (1, 2, 3)])
    counts.add([entry("4", 2, 4, 6, 1)])
    assert counts.all == Counter({0: 10, 1: 6})
    assert counts.newest == Counter({1: 6})


def test_old_steps_are_forgotten_whole():
    counts = StalenessCounts()
    counts.add([entry("a", 1, 1, 5, 0), entry("c", 1, 1, 5, 0), entry("d", 2, 2, 3, 0)])
    counts.forget_before("b")
    assert counts.all == Counter({0: 13})
    counts.forget_before("d")
    assert counts.all == Counter({0: 3})
    assert StalenessCounts().newest == Counter()


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 4)), min_size=1, max_size=5), max_size=8),
    st.integers(1, 7),
)
def test_reading_in_parts_changes_nothing(steps, size):
    rows = [(step, tokens, lag) for step, entries in enumerate(steps) for tokens, lag in entries]
    entries = [entry(f"{n:04d}", step, step, tokens, lag) for n, (step, tokens, lag) in enumerate(rows)]
    whole, parts = StalenessCounts(), StalenessCounts()
    whole.add(entries)
    for start in range(0, len(entries), size):
        parts.add(entries[start : start + size])
    assert parts.all == whole.all
    assert sum(whole.all.values()) == sum(tokens for _, tokens, _ in rows)
    assert parts.newest == whole.newest
