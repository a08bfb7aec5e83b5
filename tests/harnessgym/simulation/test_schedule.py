"""The recursion by hand, and against runs: no run is earlier, step for step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.simulation.bound import rollouts_needed
from harnessgym.simulation.comparison import arm
from harnessgym.simulation.draws import WorkTable
from harnessgym.simulation.pace import Pace
from harnessgym.simulation.schedule import step_times
from harnessgym.simulation.simulation import Simulation

NOTHING = {"transfer_s": 0, "install_s": 0, "drain_s": 0}


@pytest.fixture
def by_hand(make_config):
    """`by_hand([10, 1, 1, 1], max_staleness=1)`: when each step ends; single rollouts in groups and
    batches of one, T = 1 s.
    """

    def make(waits, work=None, updates=None, tokens=None, token_s=0.0, **trainer):
        values, decoding, zero = (
            np.zeros(8),
            np.zeros(8),
            np.zeros(8),
        )  # those beyond the steps are never waited for
        values[: len(waits)], decoding[: len(waits)] = waits, tokens or 0
        table = WorkTable(zero, decoding, values, zero, values, np.sort(values))
        options = {"steps": 3, "groups_per_step": 1, "group_size": 1, "step_s": 1} | trainer
        config = make_config(
            engines={"workers": 4},
            work={"environments": 100} | (work or {}),
            trainer=options,
            updates=NOTHING | (updates or {}),
        )
        return step_times(config, table, Pace.even(token_s))

    return make


def test_a_late_batch_holds_up_all_that_follow_in_order(by_hand):
    """Batches 0 and 1 begin at 0, batch 2 when version 1 serves, at 11; batch 1 was ready at 1, and waits
    for batch 0.
    """
    course = by_hand([10, 1, 1, 1], max_staleness=1)
    assert course.trained_s == [11, 12, 13]
    assert not course.gives_up


def test_what_is_complete_first_goes_first(by_hand):
    """Rollout 1 is there at 1; what begins then at 2 is there at 3; the long one is left, a batch behind
    already.
    """
    course = by_hand([10, 1, 1, 1], max_staleness=4, over_launch=2, consumption="drop")
    assert course.trained_s == [2, 4, 6]
    assert by_hand([10, 1, 1, 1], max_staleness=1, over_launch=2, consumption="drop").gives_up


def test_each_batch_waits_for_the_one_before_if_sampling_is_batch_wise(by_hand):
    assert by_hand([10, 1, 1, 1], work={"sampling": "batch"}, max_staleness=1).trained_s == [11, 12, 13]
    assert by_hand([10, 8, 1, 1], work={"sampling": "batch"}, max_staleness=1).trained_s == [11, 19, 20]


def test_rollouts_wait_for_an_environment(by_hand):
    assert by_hand([2, 2, 2], work={"environments": 1}, max_staleness=2).trained_s == [3, 5, 7]
    assert by_hand([2, 2, 2], work={"environments": 2}, max_staleness=2).trained_s == [3, 4, 5]


def test_tokens_take_their_time(by_hand):
    assert by_hand([2, 2, 2], tokens=[10, 20, 30], token_s=0.5, max_staleness=0).trained_s == [8, 21, 39]


def test_a_roll_goes_through_the_leases_and_a_pause_takes_one_update(by_hand):
    """4 workers at 3 s each: by one lease 12 s, by two 6 s, all at once 3 s."""
    updates = {"transfer_s": 2, "install_s": 1}
    for more, seconds in (({"at_once": 1}, 12), ({"at_once": 2}, 6), ({"mode": "between"}, 3)):
        course = by_hand([5, 5, 5], updates=updates | more, max_staleness=0)
        assert course.trained_s == [6, 12 + seconds, 18 + 2 * seconds], more


def test_engines_that_stand_still_add_their_pauses(by_hand):
    """Nothing but tokens: 5 s to decode each, 30 s of step and 3 s of update in which nothing is decoded."""
    updates = {"transfer_s": 2, "install_s": 1, "mode": "global"}
    trainer = {"max_staleness": 4, "over_launch": 1, "consumption": "drop", "alone": True, "step_s": 30}
    course = by_hand([1e-9] * 3, updates=updates, tokens=[5, 5, 5], token_s=1.0, **trainer)
    assert course.trained_s == pytest.approx([35, 73, 111])


def test_what_waits_gains_on_a_pause(make_config):
    """Half of the time in a wait; 8 s of 10 in the long kind: 0.5 · (0.8 · 4 + 0.2 · 2)."""
    zero, waits = np.zeros(2), np.array([2.0, 8.0])
    table = WorkTable(zero, np.array([10.0, 10.0]), np.array([5.0, 5.0]), zero, zero, waits)
    assert table.gained_s(4, token_s=0.5) == pytest.approx(0.5 * (0.8 * 4 + 0.2 * 2))
    assert table.gained_s(1e9, token_s=0) == pytest.approx(0.8 * 8 + 0.2 * 2)
    assert table.gained_s(0, token_s=0.5) == 0
    uneven = WorkTable.of(make_config(), 64)
    assert 0 < uneven.gained_s(1, 0.02) < 1 < uneven.gained_s(100, 0.02) < 100


SMALL_RUNS = {
    "seed": st.integers(0, 10**6),
    "name": st.sampled_from(["sync", "one-step", "eta-1", "eta-3", "eta-8", "periodic", "over-launch"]),
    "workers": st.integers(1, 6),
    "environments": st.integers(2, 40),
    "step_s": st.sampled_from([0.1, 5, 60]),
    "tokens": st.sampled_from(["lognormal:60:1.0:400", "pareto:40:1.8:400", "30"]),
    "sampling": st.sampled_from(["rollout", "rollout", "task", "batch"]),
    "update": st.sampled_from([(0, 0, 0), (2, 0.5, 1), (30, 5, 60)]),
}


@settings(max_examples=40, deadline=None)
@given(**SMALL_RUNS)
def test_no_run_does_a_step_earlier(
    make_config, seed, name, workers, environments, step_s, tokens, sampling, update
):
    """Draw by draw, and exactly: no sampling error excuses anything."""
    config = make_config(
        seed=seed,
        engines={"workers": workers},
        work={"environments": environments, "tokens": tokens, "sampling": sampling},
        trainer={"steps": 20, "step_s": step_s},
        updates=dict(zip(("transfer_s", "install_s", "drain_s"), update, strict=True)),
    )
    config = arm(config, name)
    run = Simulation(config)
    outcome = run.run()
    course = step_times(
        config, run.draws.table(rollouts_needed(config)), Pace.even(1 / config.engines.tokens_per_s)
    )
    if course.gives_up or outcome.counts.get("groups dropped"):  # others have come in their place
        return
    assert [number for number, _ in run.learner.steps] == list(range(1, 21))
    for (_, ended), earliest in zip(run.learner.steps, course.trained_s, strict=True):
        assert ended >= earliest - 1e-6


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["sync", "one-step", "eta-3", "periodic", "over-launch"]),
    token_s=st.floats(0, 0.1),
    more=st.floats(0, 0.1),
)
def test_slower_tokens_make_no_step_earlier(make_config, seed, name, token_s, more):
    """On this the proof rests."""
    config = arm(make_config(seed=seed), name)
    work = WorkTable.of(config, rollouts_needed(config))
    fast, slow = (
        step_times(config, work, Pace.even(token_s)),
        step_times(config, work, Pace.even(token_s + more)),
    )
    assert all(late >= early - 1e-9 for early, late in zip(fast.trained_s, slow.trained_s, strict=True))
    assert fast.trained_s == sorted(fast.trained_s)
