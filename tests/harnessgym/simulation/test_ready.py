import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.simulation.fleet import ReadyWorkers
from harnessgym.simulation.settings import EnginesSection
from harnessgym.simulation.worker import SimulatedWorker, call_speeds

ENGINES = EnginesSection()


@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove", "more", "less"]), st.integers(0, 4)), max_size=60)
)
def test_the_least_load_is_always_known(moves):
    """Against looking at all of them."""
    ready = ReadyWorkers(random.Random(0))
    workers = [SimulatedWorker(number, ENGINES, call_speeds(ENGINES)) for number in range(5)]
    inside = set()
    for what, number in moves:
        worker = workers[number]
        if what == "add" and number not in inside:
            ready.add(worker)
            inside.add(number)
        elif what == "remove" and number in inside:
            ready.remove(worker)
            inside.remove(number)
        elif what in ("more", "less") and (what == "more" or worker.waiting):
            before = worker.load
            worker.waiting.append(None) if what == "more" else worker.waiting.pop()
            ready.changed(worker, before)
        assert len(ready) == len(inside)
        assert all((each in ready) == (each.number in inside) for each in workers)
        if inside:
            assert ready.least == min(workers[number].load for number in inside)
            assert ready.choose(None).number in inside
        else:
            assert ready.choose(workers[0]) is None


def test_two_different_workers_are_drawn_and_all_pairs_as_often():
    ready = ReadyWorkers(random.Random(0))
    for number in range(4):
        ready.add(SimulatedWorker(number, ENGINES, call_speeds(ENGINES)))
    pairs = Counter(frozenset(worker.number for worker in ready._two()) for _ in range(6_000))
    assert len(pairs) == 6
    assert all(len(pair) == 2 and 850 < count < 1_150 for pair, count in pairs.items())
