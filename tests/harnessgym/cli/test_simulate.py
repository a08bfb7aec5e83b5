"""`harnessgym simulate`, as people call it."""

import json

import pytest
from typer.testing import CliRunner

from harnessgym.cli import app

SMALL = [
    "--engines.workers",
    "2",
    "--work.environments",
    "8",
    "--work.turns",
    "2",
    "--trainer.groups_per_step",
    "2",
]
SMALL += ["--trainer.group_size", "2", "--trainer.steps", "6", "--trainer.warmup", "1"]


def simulate(*words):
    return CliRunner(env={"COLUMNS": "220"}).invoke(app(), ["simulate", *words])


def test_tables_say_that_they_are_simulated():
    result = simulate(*SMALL, "--arm", "sync", "--arm", "eta-2", "--seeds", "2")
    assert result.exit_code == 0, result.output
    for words in (
        "Throughput (simulated, 2 seeds",
        "Staleness and updates (simulated",
        "Mean queue lengths (simulated",
    ):
        assert words in result.output
    assert "All figures are simulated" in result.output
    assert all(arm in result.output for arm in ("sync", "eta-2"))


def test_json_alone_is_printed_with_intervals():
    result = simulate(*SMALL, "--arm", "eta-2", "--seeds", "3", "--json")
    told = json.loads(result.stdout)
    assert told["simulated"] is True
    row = told["arms"]["eta-2"]
    assert row["seeds"] == len(told["seeds"]["eta-2"]) == 3
    assert row["rollouts_per_s"]["low"] <= row["rollouts_per_s"]["median"] <= row["rollouts_per_s"]["high"]
    assert sum(row["staleness"].values()) == pytest.approx(1)
    assert all(each["simulated"] and each["max_staleness"] <= 2 for each in told["seeds"]["eta-2"])


def test_a_file_and_options_are_read(tmp_path):
    (tmp_path / "sim.toml").write_text('[work]\ntokens = "pareto:40:1.8:400"\n[trainer]\nmax_staleness = 3\n')
    result = simulate(
        "--config",
        str(tmp_path / "sim.toml"),
        *SMALL,
        "--arm",
        "as-given",
        "--json",
        "--trainer.max_staleness",
        "1",
    )
    config = json.loads(result.stdout)["config"]
    assert config["work"]["tokens"]["kind"] == "pareto"
    assert config["trainer"]["max_staleness"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--arm", "etta-2"], "There is no arm 'etta-2'"),
        (["--work.tokenz", "5"], "Did you mean 'tokens'?"),
        (["--work.tokens", "pareto:5:0.5"], "has no mean"),
        (["--replay", "/nowhere"], "has no recorded run"),
    ],
)
def test_what_is_wrong_is_one_message(words, told):
    result = simulate(*SMALL, *words)
    assert told in str(result.exception)


def test_settings_are_listed():
    result = simulate("--show-settings")
    assert "trainer.max_staleness" in result.output
    assert "failures.worker_s" in result.output
