"""The toys, who learns on them from what lag, and how runs are judged; and the benchmark's shortest form,
as a command.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recipe.run import FOLDER
from benchmarks.remembered import remembered
from benchmarks.stability import lookup_run, toy_run
from benchmarks.stability.__main__ import Part
from benchmarks.stability.lookup_run import Lookup
from benchmarks.stability.methods import METHODS, method
from benchmarks.stability.outcome import outcome
from benchmarks.stability.report import figures, markdown, table
from benchmarks.stability.student import Group, Student
from benchmarks.stability.toys import BANDIT, CHAIN, TOYS, Bandit, Chain, make_world, rollouts
from benchmarks.stability.toys import table as probabilities
from trainers.held_weights import copies
from trainers.update_settings import Ewma

ROOT = Path(__file__).parents[2]
SHORT = [replace(toy, steps=8) for toy in (BANDIT, CHAIN)]
LAGS = (0, 1, 8, 32, 128)


def random_policy(toy, seed=0):
    """A table far from uniform."""
    policy = toy.policy(seed)
    with torch.no_grad():
        policy.lm_head.weight.mul_(40.0)
    return policy


def batch_of(student, toy, world, random):
    """Groups as a run plays them, with one reward in each that is another one's opposite, so that every
    group has a signal.
    """
    prompts_B = np.repeat(random.integers(toy.tokens, size=toy.groups, dtype=np.int32), toy.group_size)
    with student.sampling() as policy:
        ids_BT, logprobs_BT = rollouts(policy, prompts_B, toy.length, random)
    rows = list(toy_run._rows(prompts_B, ids_BT, logprobs_BT, student.sampling_version))
    rewards = world.rewards(prompts_B, ids_BT, random)
    rewards[:: toy.group_size], rewards[1 :: toy.group_size] = 0.0, 1.0
    cuts = [slice(at, at + toy.group_size) for at in range(0, len(rows), toy.group_size)]
    return [Group(rows[cut], rewards[cut].tolist()) for cut in cuts]


@pytest.mark.parametrize("toy", [BANDIT, CHAIN], ids=lambda toy: toy.name)
def test_the_expected_reward_is_the_mean_of_sampled_ones(toy):
    policy, world, random = random_policy(toy), make_world(toy, 3), np.random.default_rng(0)
    prompts_B = np.tile(np.arange(toy.tokens, dtype=np.int32), 1_500)
    ids_BT, _ = rollouts(policy, prompts_B, toy.length, random)
    rewards = world.rewards(prompts_B, ids_BT, random)
    assert (
        abs(rewards.mean() - world.expected(probabilities(policy))) < 5 * rewards.std() / len(rewards) ** 0.5
    )


@settings(deadline=None, max_examples=30)
@given(tokens=st.integers(2, 3), length=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_chain_is_worth_the_sum_over_all_that_can_be_sampled(tokens, length, seed):
    world = Chain(replace(CHAIN, tokens=tokens, length=length), seed)
    table_VV = np.random.default_rng(seed).dirichlet(np.ones(tokens), tokens)
    total = 0.0
    for prompt, *said in product(range(tokens), repeat=length + 1):
        chance = np.prod(
            [table_VV[before, after] for before, after in zip([prompt, *said], said, strict=False)]
        )
        reward = world.rewards(
            np.array([prompt], np.int32), np.array([said], np.int32), np.random.default_rng(0)
        )
        total += chance * float(reward[0]) / tokens
    assert world.expected(table_VV) == pytest.approx(total)


def test_a_chain_rewards_what_is_right_before_the_first_wrong_token():
    world = Chain(replace(CHAIN, tokens=4, length=4), 0)
    right = [0]
    for _ in range(4):
        right.append(int(world.right_V[right[-1]]))
    wrong = [*right[1:3], (right[3] + 1) % 4, 0]
    ids_BT, prompts_B = np.array([right[1:], wrong], np.int32), np.zeros(2, np.int32)
    assert world.rewards(prompts_B, ids_BT, np.random.default_rng(0)).tolist() == [1.0, 0.5]


def test_one_arm_of_each_context_is_far_better_than_the_others():
    rates = np.sort(Bandit(BANDIT, 5).rates_VV, axis=1)
    assert (rates[:, -1] == 0.9).all()
    assert (rates[:, -2] <= 0.6).all()


def test_what_is_recorded_is_what_was_sampled_from():
    policy = random_policy(CHAIN)
    prompts_B = np.arange(CHAIN.tokens, dtype=np.int32)
    ids_BT, logprobs_BT = rollouts(policy, prompts_B, CHAIN.length, np.random.default_rng(1))
    before_BT = np.concatenate((prompts_B[:, None], ids_BT[:, :-1]), axis=1)
    np.testing.assert_allclose(logprobs_BT, np.log(probabilities(policy))[before_BT, ids_BT], atol=1e-5)


@settings(deadline=None, max_examples=15)
@given(lag=st.integers(0, 4), steps=st.integers(0, 6))
def test_a_student_samples_with_the_weights_that_it_had_so_many_updates_ago(lag, steps):
    toy, random = CHAIN, np.random.default_rng(0)
    student, world = Student(toy.policy(0), method("TIS"), 0.05, lag), make_world(toy, 0)
    history = [copies(student.policy)]
    for _ in range(steps):
        assert student.learn(batch_of(student, toy, world, random)) is not None
        history.append(copies(student.policy))
    assert student.sampling_version == max(steps - lag, 0)
    with student.sampling() as policy:
        torch.testing.assert_close(copies(policy), history[student.sampling_version], rtol=0, atol=0)
    torch.testing.assert_close(copies(student.policy), history[-1], rtol=0, atol=0)


def test_groups_of_equal_rewards_change_nothing_and_make_a_version():
    student = Student(CHAIN.policy(0), method("VCPO"), 0.05, 2)
    before = copies(student.policy)
    groups = batch_of(student, CHAIN, make_world(CHAIN, 0), np.random.default_rng(0))
    assert student.learn([replace(group, rewards=[0.5] * len(group.rows)) for group in groups]) is None
    torch.testing.assert_close(copies(student.policy), before, rtol=0, atol=0)
    assert student.version == 1
    metrics = student.learn([groups[0], replace(groups[1], rewards=[0.0] * len(groups[1].rows))])
    assert metrics.rollouts == len(groups[0].rows)


@pytest.mark.parametrize("own", METHODS, ids=lambda own: own.name)
def test_fresh_rollouts_leave_nothing_to_correct(own):
    """All methods but the one with another baseline take the plain step."""
    weights, metrics = [], None
    for one in (own, method("none")):
        student, world, random = (
            Student(CHAIN.policy(0), one, 0.05, 0),
            make_world(CHAIN, 0),
            np.random.default_rng(0),
        )
        for _ in range(3):
            metrics = student.learn(batch_of(student, CHAIN, world, random))
        weights.append(copies(student.policy))
        assert metrics.rollout_ess == pytest.approx(1.0, abs=1e-4)
        assert metrics.lr == pytest.approx(0.05, rel=1e-4)
        assert metrics.masked == metrics.clip_fraction == 0.0
    alike = all(torch.allclose(a, b, atol=2e-3) for a, b in zip(*weights, strict=True))
    assert alike == (own.name != "VCPO")


def test_stale_rollouts_are_told_apart_by_every_method():
    weights = {}
    for own in METHODS:
        student, world, random = (
            Student(CHAIN.policy(0), own, 0.1, 4),
            make_world(CHAIN, 0),
            np.random.default_rng(0),
        )
        seen = [student.learn(batch_of(student, CHAIN, world, random)) for _ in range(6)]
        assert min(metrics.rollout_ess for metrics in seen) < 0.95
        lowered = [metrics.lr < 0.1 * 0.99 for metrics in seen]
        assert any(lowered) == (own.name == "VCPO")
        weights[own.name] = torch.cat([part.flatten() for part in copies(student.policy)])
    for one, other in ((a, b) for a in weights for b in weights if a < b):
        assert not torch.allclose(weights[one], weights[other], atol=1e-3), (one, other)


@pytest.mark.parametrize("lag", LAGS)
def test_every_method_is_one_that_a_run_file_can_name(lag):
    for own in METHODS:
        found = own.settings(0.01, lag)
        assert found.lr == 0.01
        if isinstance(found.proximal, Ewma):
            assert found.proximal.window == max(lag, 1)
    assert method("VCPO").settings(0.01, lag).baseline == "minimum_variance"


@pytest.mark.parametrize("toy", SHORT, ids=lambda toy: toy.name)
def test_a_run_is_the_same_again_and_another_with_another_seed(toy):
    first, again, other = (toy_run.play(toy, method("VCPO"), 3, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first["curve"]) == 1 + toy.steps // toy.look_every
    assert first["updates"] <= first["steps"] == toy.steps


def test_the_plain_method_learns_each_toy_from_fresh_rollouts():
    for toy in (BANDIT, CHAIN):
        found = toy_run.play(replace(toy, lr=0.02, steps=120), method("none"), 0, 1_000)
        assert found["final"] > max(0.6, 1.5 * found["start"])
        assert not found["collapsed"]


def test_the_shipped_policy_is_played_and_trained_the_same_again():
    lookup, folder = Lookup(steps=3, groups=3, eval_every=2, eval_tasks=3), ROOT / FOLDER
    first, again, fresh = (lookup_run.play(lookup, method("TIS"), lag, 0, folder) for lag in (2, 2, 0))
    assert first == again
    assert len(first["curve"]) == len(first["greedy"]) == 3  # at the start, after two steps, and at the end
    assert 0 < first["updates"] <= first["steps"] == 3
    assert first["ess"] < fresh["ess"] == pytest.approx(1.0, abs=1e-3)


def test_a_run_whose_weights_overflow_has_collapsed():
    found = toy_run.play(replace(CHAIN, lr=1e30, look_every=1), method("none"), 0, 0)
    assert "not finite" in found["failed"]
    assert found["collapsed"]


def test_collapse_is_below_the_start_or_half_of_the_best():
    def collapsed(*curve, failed=None):
        return outcome(curve, [], 10, failed)["collapsed"]

    assert not collapsed(0.2, 0.9, 0.5)
    assert collapsed(0.2, 0.9, 0.44)
    assert collapsed(0.5, 0.6, 0.49)
    assert collapsed(0.2, 0.9, failed="the gradient is not finite")
    assert outcome([0.0] * 18 + [0.4, 0.8], [], 10, None)["final"] == pytest.approx(0.6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_run_ends_within_what_it_has_been(curve):
    found = outcome(curve, [], 10, None)
    assert min(curve) - 1e-12 <= found["final"] <= found["best"] + 1e-12
    assert found["ess"] == 1.0


def run_of(final, ess=1.0, *, collapsed=False):
    return outcome([0.1, final], [], 1, None) | {"ess": ess, "collapsed": collapsed}


def test_figures_compare_methods_at_the_same_lag_seed_by_seed():
    runs = {
        (8, "none"): [run_of(0.5), run_of(0.9)],
        (8, "TIS"): [run_of(0.6, 0.5), run_of(1.0, 0.7, collapsed=True)],
    }
    none, tis = figures(runs)
    assert none["over_none"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert [tis["over_none"][name] for name in ("mean", "low", "high")] == pytest.approx([0.1] * 3)
    assert (tis["final"]["mean"], tis["ess"]["mean"], tis["collapsed"]) == (0.8, 0.6, 1)
    assert 0 < tis["collapse_rate"]["low"] < 0.5 < tis["collapse_rate"]["high"] < 1
    assert none["collapse_rate"]["low"] == 0.0 < none["collapse_rate"]["high"]
    rewards, collapses, sizes = markdown([none, tis, none | {"lag": 0}, tis | {"lag": 0}]).split("\n\n")
    assert rewards.splitlines()[0] == "| final reward [95 %] | k = 8 | k = 0 |"
    assert rewards.splitlines()[-1] == "| TIS | 0.800 [-1.741, 3.341] | 0.800 [-1.741, 3.341] |"
    assert "| TIS | 1 [0.09, 0.91] | 1 [0.09, 0.91] |" in collapses
    assert "| TIS | 0.60 [-0.67, 1.87] | 0.60 [-0.67, 1.87] |" in sizes
    shown = table("some", [none, tis])
    assert shown.row_count == 2
    assert list(shown.columns[3].cells) == ["", "+0.100 [+0.100, +0.100]"]


def test_what_is_told_of_a_run_holds_all_that_changes_it():
    toy, lookup = Part("chain", CHAIN, LAGS, METHODS, 2), Part("quickstart", Lookup(), (0, 8), METHODS, 1)
    one = toy.to_dict(8, method("EWMA"), 0)
    others = [
        toy.to_dict(1, method("EWMA"), 0), toy.to_dict(8, method("TIS"), 0), toy.to_dict(8, method("EWMA"), 1),
        replace(toy, task=replace(CHAIN, lr=0.5)).to_dict(8, method("EWMA"), 0),
        *(replace(toy, task=other).to_dict(8, method("EWMA"), 0) for other in TOYS if other != CHAIN),
        lookup.to_dict(8, method("EWMA"), 0),
    ]  # fmt: skip
    assert one not in others
    assert one["update"]["proximal"]["window"] == 8
    assert one["task"] == asdict(CHAIN)
    assert json.loads(json.dumps(one))["update"]["corrections"] == list(one["update"]["corrections"])


def test_a_result_is_remembered_for_equal_settings_alone(tmp_path):
    played, path = [], tmp_path / "some/cell.json"

    def run():
        played.append(1)
        return {"n": len(played)}

    assert [remembered(path, {"lags": (1, 2)}, run)["n"] for _ in range(2)] == [1, 1]
    assert remembered(path, {"lags": (1, 3)}, run)["n"] == 2
    assert json.loads(path.read_text()) == {"told": {"lags": [1, 3]}, "n": 2}


def test_the_short_form_prints_tables_draws_them_and_goes_on_where_it_stopped(tmp_path):
    (tmp_path / "environments").symlink_to(ROOT / "environments")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def run(*options):
        command = [sys.executable, "-m", "benchmarks.stability", "--quick", *options]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    shown = run("--plot", "found.png")
    assert all(f"{name}, in process" in shown for name in ("bandit", "chain", "quickstart"))
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "benchmarks/out/quick/stability.json"
    first = json.loads(out.read_text())
    assert [part["name"] for part in first["parts"]] == ["bandit", "chain", "quickstart"]
    assert {row["seeds"] for part in first["parts"][:2] for row in part["rows"]} == {2}
    cell = tmp_path / "runs/bench-stability/quick/chain/2-TIS-1.json"
    cell.write_text(json.dumps(json.loads(cell.read_text()) | {"final": 0.0, "collapsed": True}))
    run("--only", "bandit", "--only", "chain")
    again = json.loads(out.read_text())
    changed = [
        (part["name"], row["lag"], row["method"], row["collapsed"])
        for part, old in zip(again["parts"], first["parts"], strict=False)
        for row, before in zip(part["rows"], old["rows"], strict=True)
        if row != before
    ]
    assert changed == [("chain", 2, "TIS", 1)]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run("--only", "chain-fast")
    assert "--quick has no part chain-fast" in refused.value.stderr
