"""The simulated learner and what the benchmark makes of it; and its shortest form, as a command."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bernoulli_pool import ARMS, WORLDS, Learner, play, sooner
from benchmarks.curation import by_selector, summary
from benchmarks.seeds import t_interval
from harnessgym.scheduling.selection import Visit

ROOT = Path(__file__).parents[2]
SMALL = replace(WORLDS[0], tasks=30, rollouts=1_000)
PLACE = {f"t{n}": n for n in range(SMALL.tasks)}


def visit(task, *rewards):
    return Visit(task, len(rewards), 0, rewards)


def test_a_group_moves_its_task_by_its_standard_deviation_and_everybody_a_little():
    learner = Learner(SMALL, 0)
    before, shared = learner.theta_N.copy(), learner.shared
    learner.train([visit("t3", 1.0, 0.0, 0.0, 0.0), visit("t4", 1.0, 1.0)], PLACE)
    move = SMALL.rate * 4 / 8 * np.sqrt(0.25 * 0.75)
    assert learner.theta_N - before == pytest.approx([move if n == 3 else 0.0 for n in range(SMALL.tasks)])
    assert learner.shared - shared == pytest.approx(SMALL.transfer * move)


def test_averaged_steps_are_as_long_with_few_signals_as_with_many():
    def moved(*batch):
        learner = Learner(replace(SMALL, averaged=True), 0)
        before = learner.theta_N.sum()
        learner.train(batch, PLACE)
        return learner.theta_N.sum() - before

    full = moved(visit("t0", 1.0, 0.0), visit("t1", 1.0, 0.0))
    assert moved(visit("t0", 1.0, 0.0), visit("t1", 1.0, 1.0)) == pytest.approx(full)
    assert moved(visit("t0", 1.0, 1.0)) == 0.0


def test_tasks_that_cannot_be_solved_never_are():
    learner = Learner(SMALL, 0)
    hopeless = np.flatnonzero(~learner.solvable_N)
    assert len(hopeless)
    learner.theta_N += 99.0
    assert {learner.rollouts(int(task), 50) for task in hopeless} == {(0.0,) * 50}
    assert learner.rates()[learner.solvable_N] == pytest.approx(1.0)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_spends_the_budget_and_learns_the_same_again(arm):
    first, again = (play(SMALL, arm, 3) for _ in range(2))
    assert first == again
    assert first["rollouts"] == SMALL.rollouts
    assert first["curve"][0] == play(SMALL, ARMS[0], 3)["curve"][0], "all begin with the same tasks"
    assert first["final"] == first["curve"][-1][1] > first["curve"][0][1]


def test_refilled_batches_have_more_signal_and_are_fewer():
    plain, filled = (play(SMALL, arm, 0) for arm in ARMS[:2])
    assert filled["steps"] < plain["steps"]


def test_a_level_is_reached_between_two_steps():
    curve = [(0, 0.2), (100, 0.4), (200, 0.4), (300, 0.8)]
    assert [sooner(curve, level) for level in (0.3, 0.4, 0.6, 0.9)] == [
        pytest.approx(50),
        100,
        pytest.approx(250),
        None,
    ]


def test_intervals_are_the_textbooks_and_arms_are_compared_seed_by_seed():
    mean, low, high = t_interval([0.0, 1.0, 2.0, 3.0])
    assert mean == 1.5
    assert high - mean == mean - low == pytest.approx(3.182446305 * np.std([0, 1, 2, 3], ddof=1) / 2)
    own = [play(SMALL, ARMS[2], seed) for seed in range(2)]
    uniform = [play(SMALL, ARMS[0], seed) for seed in range(2)]
    found = summary(ARMS[2], own, uniform)
    assert found["gain"][0] == pytest.approx(
        np.mean([a["final"] - b["final"] for a, b in zip(own, uniform, strict=True)])
    )
    itself = summary(ARMS[0], uniform, uniform)
    assert itself["gain"] == (0.0, 0.0, 0.0)
    assert itself["never"] == 0


def test_real_runs_are_compared_with_uniform_on_their_own_seed():
    def run(selector, seed, after):
        return {"told": {"selector": selector, "seed": seed}, "after": after, "signal": 0.5, "rollouts": 96}

    runs = [run("uniform", 0, 0.6), run("vade", 0, 0.7), run("uniform", 1, 0.8), run("vade", 1, 0.7)]
    uniform, vade = by_selector(runs)
    assert uniform["gain"] == (0.0, 0.0, 0.0)
    assert vade["after"][0] == pytest.approx(0.7)
    assert vade["gain"][0] == pytest.approx(0.0)
    assert vade["gain"][2] == pytest.approx(12.7062047 * 0.1)  # of one degree of freedom


def test_the_short_form_prints_a_table_that_says_simulated_and_goes_on_where_it_stopped(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "benchmarks.curation", "--quick", "--plot", "gains.png"]

    def run():
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "simulated: either" in run()
    out = tmp_path / "benchmarks/out/curation.json"
    first = json.loads(out.read_text())["bernoulli"]
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")
    kept = sorted((tmp_path / "runs/bench-curation/results").iterdir())
    assert len(kept) == 2 * len(ARMS)
    told = json.loads(kept[0].read_text())
    kept[0].write_text(json.dumps(told | {"signal": 77.0}))
    kept[1].write_text(json.dumps(json.loads(kept[1].read_text()) | {"told": {}}))
    run()
    again = json.loads(out.read_text())["bernoulli"]
    changed = [own for own, other in zip(first[0]["arms"], again[0]["arms"], strict=True) if own != other]
    assert [row["name"] for row in changed] == [told["told"]["arm"]["name"]]
