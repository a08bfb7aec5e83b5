"""Which worker takes a call."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.routing import OVERLOAD_FACTOR, OVERLOAD_SLACK, WorkerLoad, choose, prefer

WORKERS = st.lists(
    st.builds(
        WorkerLoad,
        id=st.integers(0, 9).map(str),
        version=st.integers(0, 3),
        state=st.sampled_from(["starting", "ready", "ready", "ready", "draining", "updating", "dead"]),
        load=st.integers(0, 40),
        suspect=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda worker: worker.id,
)
VERSION = st.none() | st.integers(0, 3)


@given(WORKERS, st.none() | st.integers(0, 9).map(str), VERSION, VERSION, st.integers())
def test_only_a_worker_that_may_take_the_call_is_chosen_and_one_is_if_there_is_any(
    workers: list[WorkerLoad], owner: str | None, pin: int | None, least: int | None, seed: int
) -> None:
    usable = {
        worker.id
        for worker in workers
        if worker.state == "ready" and not worker.suspect
        if (pin is None or worker.version == pin) and (least is None or worker.version >= least)
    }
    chosen = choose(workers, prefix_owner=owner, pin=pin, min_version=least, rng=random.Random(seed))
    assert chosen in usable if usable else chosen is None


@given(st.integers(0, 30), st.integers(0, 100), st.integers())
def test_the_owner_of_the_prefix_is_kept_until_it_is_overloaded(least: int, load: int, seed: int) -> None:
    idle, owner = WorkerLoad("idle", 0, "ready", least), WorkerLoad("owner", 0, "ready", load)
    chosen = choose([idle, owner], prefix_owner="owner", rng=random.Random(seed))
    bound = OVERLOAD_FACTOR * min(least, load) + OVERLOAD_SLACK
    assert chosen == ("owner" if load <= bound else "idle")


def test_two_choices_spread_the_load() -> None:
    rng = random.Random(0)
    workers = [WorkerLoad(str(number), 0, "ready", 0) for number in range(8)]
    for _ in range(800):
        chosen = choose(workers, rng=rng)
        workers = [replace(worker, load=worker.load + (worker.id == chosen)) for worker in workers]
    loads = [worker.load for worker in workers]
    assert max(loads) - min(loads) <= 6


def test_the_least_load_of_all_decides_whether_the_owner_is_overloaded_whoever_is_drawn() -> None:
    owner, drawn = (
        WorkerLoad("owner", 0, "ready", OVERLOAD_SLACK + 1),
        WorkerLoad("drawn", 0, "ready", OVERLOAD_SLACK),
    )
    assert prefer(owner, [drawn], least=1).id == "owner"
    assert prefer(owner, [drawn], least=0).id == "drawn"
    assert prefer(None, [owner, drawn], least=0).id == "drawn"
