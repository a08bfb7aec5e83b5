"""Bounds against closed forms and against runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.config import validate
from harnessgym.simulation.bound import bound_of
from harnessgym.simulation.comparison import arm
from harnessgym.simulation.draws import Draws, WorkTable
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.simulation import Simulation

NOTHING = {"transfer_s": 0, "install_s": 0, "drain_s": 0}
ONE = {
    "engines": {"workers": 1, "tokens_per_s": 10, "most_tokens_per_s": 10, "prefill_cost": 0},
    "work": {
        "turns": 2,
        "tokens": 50,
        "read": 0,
        "environment_s": 5,
        "grading_s": 0,
        "environments": 1,
        "graders": 1,
    },
    "updates": NOTHING,
}


def test_one_worker_by_hand(make_config):
    """A rollout is 2 calls of 5 s and 2 waits of 5 s: 20 s. One environment: 1/20 a second, however large
    η is.
    """
    trainer = {
        "max_staleness": 4,
        "groups_per_step": 1,
        "group_size": 2,
        "step_s": 1,
        "steps": 20,
        "warmup": 4,
    }
    config = make_config(**ONE, trainer=trainer)
    bound = bound_of(config)
    assert bound.engines == pytest.approx(1 / 20)
    assert bound.trainer == pytest.approx(2 / 1)
    assert bound.path == pytest.approx(1 / 20)
    assert bound.graders == bound_of(arm(config, "sync")).graders == float("inf")
    outcome = Simulation(config).run()
    assert outcome.rollouts_per_s == pytest.approx(1 / 20)
    assert outcome.of_bound == pytest.approx(1)
    assert outcome.idle["engines"] == pytest.approx(1 / 2)


def test_one_worker_with_two_environments_by_hand(make_config):
    """Never more than 10 tokens/s for 100 tokens a rollout: 1/10 a second, if the one waits while the
    other's call runs.
    """
    work = ONE["work"] | {"environments": 2}
    trainer = {
        "max_staleness": 4,
        "groups_per_step": 1,
        "group_size": 2,
        "step_s": 1,
        "steps": 20,
        "warmup": 4,
    }
    config = make_config(**(ONE | {"work": work}), trainer=trainer)
    assert bound_of(config).engines == pytest.approx(1 / 10)
    assert Simulation(config).run().rollouts_per_s <= 1 / 10 + 1e-9


def test_staleness_and_the_longest_rollout_by_hand(make_config):
    """As above with room for all: 5 batches of 2 rollouts in 20 s, a step of 2 s and a roll of 1 s; for η
    = 0 one.
    """
    trainer = {"groups_per_step": 1, "group_size": 2, "step_s": 2, "steps": 40, "warmup": 10}
    one = ONE | {
        "engines": ONE["engines"] | {"most_tokens_per_s": 1e12},
        "updates": NOTHING | {"transfer_s": 1},
    }
    config = make_config(
        **(one | {"work": ONE["work"] | {"environments": 64, "graders": 64}}), trainer=trainer
    )
    for eta in (0, 4):
        bound = bound_of(arm(config, f"eta-{eta}"))
        assert bound.limit == "path"
        assert bound.path == pytest.approx((eta + 1) * 2 / (20 + 2 + 1))
        assert Simulation(arm(config, f"eta-{eta}")).run().of_bound == pytest.approx(
            1, rel=0.005
        )  # part of a token is sampled again


def test_a_synchronous_step_is_the_longest_rollout_and_the_training(make_config):
    """The closed form, exactly: step = max of N + T, over the very rollouts that each batch had."""
    config = make_config(
        engines={"most_tokens_per_s": 1e12, "prefill_cost": 0},
        work={"environments": 64, "graders": 64},
        trainer={"steps": 40, "step_s": 7},
        updates=NOTHING,
    )
    sync = arm(config, "sync")
    outcome = Simulation(sync).run()
    alone = WorkTable.of(sync, 40 * sync.batch).alone_s(sync).reshape(40, sync.batch)
    assert outcome.virtual_s == pytest.approx((alone.max(axis=1) + 7).sum(), rel=1e-6)
    assert 1 / bound_of(sync).path == pytest.approx(outcome.virtual_s / (40 * sync.batch), rel=1e-6)
    assert outcome.of_bound == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("environments", "decoding_s"),
    [(16, 200 * (1 / 20 + 7 / 140)), (8, 2 * 200 * (1 / 20 + 3 / 140))],
    ids=["at once", "in waves"],
)
def test_calls_that_share_workers_by_hand(make_config, environments, decoding_s):
    """16 calls of 200 tokens at 2 workers, a step of 5 s. With room for all 8 share a worker; with room
    for half 4, twice.
    """
    work = {
        "turns": 1,
        "tokens": 200,
        "read": 0,
        "environment_s": 0,
        "grading_s": 0,
        "environments": environments,
        "graders": 16,
    }
    config = make_config(
        engines={"workers": 2, "tokens_per_s": 20, "most_tokens_per_s": 140, "prefill_cost": 0},
        work=work,
        trainer={"groups_per_step": 8, "group_size": 2, "step_s": 5, "steps": 12, "warmup": 2},
        updates=NOTHING,
    )
    sync, rate = arm(config, "sync"), 16 / (decoding_s + 5)
    assert rate <= bound_of(sync).path < 1.015 * rate, (
        "a span of time that a step begins in counts as not so full"
    )
    assert Simulation(sync).run().rollouts_per_s == pytest.approx(rate, rel=1e-3)


SATURATED = {"tokens_per_s": 60, "most_tokens_per_s": 70, "max_batch": 128}
"""Calls make each other slow at once, so that the load takes many rounds to agree with its pace."""


@pytest.mark.parametrize(
    ("workers", "environments", "trainer", "drain_s", "seed"),
    [
        (1, 16, {"groups_per_step": 2, "max_staleness": 2, "step_s": 200}, 0, 2),
        (2, 64, {"groups_per_step": 8, "max_staleness": 1, "step_s": 30}, 60, 84),
    ],
)
def test_the_bound_is_near_where_engines_are_saturated(workers, environments, trainer, drain_s, seed):
    """In the first the trainer sets the rate of the first rounds, before the load does; in the second
    drains are long.
    """
    raw = {
        "seed": seed,
        "engines": SATURATED | {"workers": workers},
        "work": {"environments": environments},
        "trainer": {"steps": 12, "warmup": 4, "group_size": 4} | trainer,
        "updates": {"drain_s": drain_s},
    }
    outcome = Simulation(validate(SimulationConfig, raw, "the test")).run()
    assert outcome.bound.limit == "path"
    assert 0.95 < outcome.of_bound < 1.03


def test_a_synchronous_batch_needs_no_place_for_each_rollout():
    """Places go to the rest of the batch as they come free: a step is no succession of waves that wait for
    their longest.
    """
    work, trainer = {"environments": 64, "graders": 32}, {"groups_per_step": 32, "steps": 12, "warmup": 4}
    config = validate(
        SimulationConfig, {"engines": {"workers": 2}, "work": work, "trainer": trainer}, "the test"
    )
    assert 0.95 < Simulation(arm(config, "sync")).run().of_bound < 1.03


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(
        ["sync", "one-step", "eta-1", "eta-3", "eta-8", "periodic", "recycle", "over-launch"]
    ),
    workers=st.integers(1, 6),
    environments=st.integers(2, 40),
    graders=st.integers(1, 8),
    step_s=st.sampled_from([0.1, 5, 60]),
    tokens=st.sampled_from(["lognormal:60:1.0:400", "pareto:40:1.8:400", "30"]),
    environment_s=st.sampled_from(["lognormal:3:1.0:300", "0", "20"]),
    update=st.sampled_from([(0, 0, 0), (2, 0.5, 1), (30, 5, 60)]),
    most=st.sampled_from([70, 2_000]),
)
def test_no_run_is_faster_than_its_bound(
    make_config, seed, name, workers, environments, graders, step_s, tokens, environment_s, update, most
):
    """But for tokens that are not spread evenly over a rollout, and for what was sampled before the window
    that counts.

    Those make it no theorem, so the settings are the same in every run.
    """
    config = make_config(
        seed=seed,
        engines={"workers": workers, "most_tokens_per_s": most},
        work={
            "environments": environments,
            "graders": graders,
            "tokens": tokens,
            "environment_s": environment_s,
        },
        trainer={"steps": 48, "warmup": 18, "step_s": step_s},
        updates=dict(zip(("transfer_s", "install_s", "drain_s"), update, strict=True)),
    )
    outcome = Simulation(arm(config, name)).run()
    assert outcome.of_bound < (1.05 if outcome.bound.limit == "path" else 1.1)


@pytest.mark.parametrize(
    "name", ["sync", "one-step", "periodic", "recycle", "over-launch", "eta-1", "eta-2", "eta-4", "eta-8"]
)
def test_the_bound_is_near(name):
    """Within 5 % of runs of the default load, small as these are."""
    work, trainer = {"environments": 64, "graders": 32}, {"groups_per_step": 8, "steps": 34, "warmup": 14}
    config = validate(
        SimulationConfig, {"engines": {"workers": 2}, "work": work, "trainer": trainer}, "the test"
    )
    assert 0.95 < Simulation(arm(config, name)).run().of_bound < 1.04


LONG_WAITS = {
    "engines": {"workers": 2, "max_batch": 8},
    "work": {"turns": 2, "tokens": 30, "environment_s": 60, "environments": 16, "graders": 4},
}


@pytest.mark.parametrize(
    "updates",
    [
        {},
        {"transfer_s": 20, "install_s": 10},
        {"transfer_s": 20, "install_s": 10, "drain_s": 30},
        {"transfer_s": 20, "install_s": 10, "mode": "rolling"},
    ],
)
def test_environments_that_go_on_while_engines_stand_still_are_no_way_past_the_bound(make_config, updates):
    """They answer during the steps and the pauses, which therefore do not add up with their time."""
    trainer = {"steps": 60, "warmup": 8, "groups_per_step": 8, "group_size": 2, "step_s": 30}
    recycled = arm(make_config(**LONG_WAITS, trainer=trainer), "recycle").model_dump()
    recycled["updates"] |= updates
    config = validate(SimulationConfig, recycled, "the test")
    assert 0.5 < Simulation(config).run().of_bound <= 1.02


def test_a_pause_by_hand(make_config):
    """16 rollouts of 100 tokens at 20 tokens/s: 80 s, a step of 30 s and a pause of 12 s. Waits may take
    none of it.
    """
    config = make_config(
        engines={"workers": 2, "tokens_per_s": 10, "most_tokens_per_s": 10, "prefill_cost": 0},
        work={"turns": 2, "tokens": 50, "read": 0, "environment_s": 0, "grading_s": 0, "environments": 16},
        trainer={"groups_per_step": 8, "group_size": 2, "step_s": 30, "steps": 60, "warmup": 10},
        updates={"transfer_s": 8, "install_s": 4},
    )
    recycled = arm(config, "recycle")
    assert bound_of(recycled).path == pytest.approx(16 / (80 + 30 + 12), rel=0.01)
    assert Simulation(recycled).run().of_bound == pytest.approx(1, abs=0.03)


def test_much_staleness_reaches_the_engines_bound(make_config):
    config = make_config(
        work={"environments": 24, "graders": 24},
        trainer={"steps": 120, "warmup": 20, "step_s": 0.5},
        updates=NOTHING,
    )
    outcome = Simulation(arm(config, "eta-16")).run()
    assert outcome.bound.engines == pytest.approx(outcome.bound.path, rel=0.1)
    assert outcome.of_bound > 0.9


def test_the_work_table_is_the_draws(make_config):
    config = make_config(work={"read": 11})
    table, draws = WorkTable.of(config, 5), Draws(config)
    for number in range(5):
        one = draws.rollout(number)
        assert table.tokens[number] == sum(one.tokens)
        assert table.decoding[number] == pytest.approx(
            sum(one.tokens) + config.engines.prefill_cost * 11 * len(one.tokens)
        )
        assert table.environment_s[number] == pytest.approx(sum(one.environment_s))
    assert np.all(table.alone_s(config) > table.environment_s)
