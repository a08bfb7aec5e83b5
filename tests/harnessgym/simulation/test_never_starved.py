"""The rule that no run may break, at every instant of simulated runs: never no capacity and nothing that
runs.

The store's side of it is `tests/harnessgym/rollout/test_never_starved.py`.
"""

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.simulation.comparison import arm
from harnessgym.simulation.simulation import Simulation

EVENTS = 400_000
"""A run of these tests has a tenth of them at most; one that goes on for longer never ends."""

SETTINGS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "engines": st.fixed_dictionaries({"workers": st.integers(1, 5), "max_batch": st.integers(1, 8)}),
        "work": st.fixed_dictionaries(
            {
                "sampling": st.sampled_from(["batch", "task", "rollout"]),
                "environments": st.integers(1, 30),
                "graders": st.integers(1, 6),
                "tokens": st.sampled_from(["lognormal:60:1.0:400", "pareto:40:1.5:4000", "1"]),
                "environment_s": st.sampled_from(["lognormal:3:1.0", "0", "50"]),
            }
        ),
        "trainer": st.fixed_dictionaries(
            {
                "steps": st.integers(1, 10),
                "groups_per_step": st.integers(1, 5),
                "group_size": st.integers(1, 4),
                "step_s": st.sampled_from([0, 1, 90]),
                "max_staleness": st.integers(0, 5),
                "consumption": st.sampled_from(["wait", "drop", "requeue"]),
                "over_launch": st.none() | st.sampled_from([1, 1.5, 2, 4, 6]),
                "alone": st.booleans(),
                "reuse": st.sampled_from([0, 0, 1, 2]),
            }
        ),
        "updates": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["rolling", "global", "between"]),
                "at_once": st.none() | st.integers(1, 5),
                "transfer_s": st.sampled_from([0, 2, 40]),
                "drain_s": st.sampled_from([0, 1, 60]),
            }
        ),
        "failures": st.fixed_dictionaries(
            {
                "worker_s": st.sampled_from([0, 0, 20]),
                "worker_restart_s": st.just(7),
                "trainer_s": st.sampled_from([0, 0, 200]),
                "trainer_restart_s": st.just(3),
                "versions_lost": st.integers(0, 1),
                "rollout": st.sampled_from([0, 0.2]),
            }
        ),
    }
)


def walk(config):
    """Every instant of a run, once all that happens at it has happened, until it ends."""
    run = Simulation(config)
    run.begin()
    for _ in range(EVENTS):
        if run.learner.done:
            return run
        assert run.clock.step(), "work is left, and nothing will ever happen"
        if run.clock.next_at > run.clock.now and not run.learner.done:
            assert_somebody_works(run)
    raise AssertionError(f"no end after {EVENTS} events, at step {run.learner.step}")


def assert_somebody_works(run):
    """A trainer or an engine that was killed comes back: its supervisor is at work."""
    back = run.learner.state == "dead" or any(state == "dead" for state, _ in run.fleet.serving())
    if back:
        return
    trains, samples, updates = run.learner.state == "working", run.node.unfinished > 0, run.updates.busy
    assert trains or samples or updates, "nothing runs, and work is left"
    if samples and not trains and not updates:
        in_flight = sum(worker.load for worker in run.fleet.workers)
        elsewhere = run.measures.level("environments").value + run.measures.level("graders").value
        assert in_flight + elsewhere, "rollouts are submitted, and none has begun"
        assert any(state == "ready" for state, _ in run.fleet.serving()), (
            "no engine takes calls, and none is being updated"
        )
    if run.learner.state == "idle" and not run.node.open:
        assert updates or run.planner.capacity() == 0, (
            "there was capacity at the end of an instant, and nobody used it"
        )


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_somebody_works_at_every_instant_and_the_run_ends(make_config, sections):
    try:
        config = make_config(**sections)
    except ConfigError:  # contradictory, see `test_what_could_never_run_is_refused`
        reject()
    try:
        run = walk(config)
    except TrainerError:  # a trainer that loses its last version at each death dies more often than it steps
        assert config.failures.trainer_s
        assert config.failures.versions_lost
        reject()
    assert run.learner.step == config.trainer.steps


@pytest.mark.parametrize("name", ["sync", "one-step", "periodic", "recycle", "over-launch", "eta-1", "eta-8"])
def test_the_arms_keep_to_it(make_config, name):
    walk(arm(make_config(), name))


def test_the_rule_is_seen_to_be_broken(make_config):
    """The check itself: nothing was submitted, and nobody is going to."""
    run = Simulation(make_config())
    with pytest.raises(AssertionError, match="work is left"):
        assert_somebody_works(run)
