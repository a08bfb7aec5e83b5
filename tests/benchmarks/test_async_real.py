"""What the benchmark makes of its runs, and its shortest form, from the run file to the table."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.async_real import Arm, common_level, compare, main, moving_mean, reached, run_file

ROOT = Path(__file__).parents[2]
RESULTS = "runs/bench-async-real/results"


def result(eta, seed, rewards, step_s, tools="slow"):
    times = [step_s * (place + 1) for place in range(len(rewards))]
    return {"arm": {"eta": eta, "seed": seed}, "tools": tools, "rewards": rewards, "times_s": times}


def test_the_moving_mean_has_only_what_there_is():
    assert moving_mean([0.0, 1.0, 1.0, 1.0, 1.0]) == [0.0, 0.5, pytest.approx(2 / 3), 0.75, 1.0]


def test_every_run_reaches_the_level():
    low, high = [0.3] * 4 + [0.47] * 4, [0.9] * 8
    assert common_level([result(0, 0, high, 1), result(4, 0, high, 1)]) == 0.6
    assert common_level([result(0, 0, high, 1), result(4, 0, low, 1)]) == pytest.approx(0.45)
    assert common_level([result(0, 0, high, 1), result(4, 0, high[:3], 1)]) is None


def test_the_level_is_reached_by_a_whole_window_and_not_by_one_lucky_step():
    assert reached(result(0, 0, [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 2.0), 0.6) == 14.0


def test_seeds_are_compared_with_themselves():
    rewards = [0.2] * 4 + [0.8] * 4
    runs = [
        result(eta, seed, rewards, step_s)
        for seed, slow in ((0, 2), (1, 4))
        for eta, step_s in ((0, slow), (4, 1))
    ]
    (pair,) = compare(runs)
    assert pair["times_to_level"] == pair["times_all_steps"] == {"median": 3, "low": 2, "high": 4}


def test_only_slow_tools_change_the_run_file():
    fast, slow = (tomllib.loads(run_file(Arm(0, delay, 0, 3, 64))) for delay in ("", "0.3:1"))
    assert fast == tomllib.loads((ROOT / "examples/quickstart.toml").read_text())
    added = [harness["settings"].pop("argv")[2:] for harness in slow["harnesses"]]
    assert added == [["--delay", "0.3:1", "--seed", "{seed}"]] * 2
    for harness in fast["harnesses"]:
        del harness["settings"]["argv"]
    assert slow == fast


@pytest.mark.timeout(700)
def test_the_shortest_form_runs_both_arms_and_then_has_them(tmp_path, monkeypatch):
    (tmp_path / "environments").symlink_to(ROOT / "environments")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    quickstart = tmp_path / "examples/quickstart.toml"
    groups = "groups_per_step = 16"
    assert groups in quickstart.read_text()
    quickstart.write_text(quickstart.read_text().replace(groups, "groups_per_step = 2"))
    words = ["--quick", "--steps", "2", "--median", "0.05"]
    command = [sys.executable, "-m", "benchmarks.async_real", *words]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=300)
    results = {path: path.stat().st_mtime_ns for path in (tmp_path / RESULTS).glob("*.json")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["async_real", *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / RESULTS).glob("*.json")} == results
    assert len(results) == 2
    out = json.loads((tmp_path / "benchmarks/out/async-real.json").read_text())
    assert [run["arm"]["eta"] for run in out["runs"]] == [0, 4]
    for run in out["runs"]:
        assert len(run["times_s"]) == 2
        assert all(earlier < later for earlier, later in pairwise([0.0, *run["times_s"]]))
        assert run["rollouts"] >= 16
        assert run["max_staleness"] <= run["arm"]["eta"]
