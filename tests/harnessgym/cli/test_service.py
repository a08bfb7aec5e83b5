"""The list of settings of the commands that run one process, and of those that run many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harnessgym.cli.service import show_settings
from harnessgym.config import Config
from harnessgym.config.setting_tree import setting_rows
from harnessgym.registry import REGISTRY, load, names
from harnessgym.run_config.run import RunConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", names("settings"))
def test_every_setting_has_a_meaning(name):
    rows = setting_rows(load("settings", name))
    assert rows
    assert [key for key, _, meaning in rows if not meaning] == []


class Engine(Config):
    """One of many."""

    url: str
    """Where it is, as `[[engines]]` says."""


class Agent(Config):
    """There or not."""

    drain_s: float = 5.0
    """Seconds."""


class Settings(Config):
    """All of them."""

    agent: Agent | None = None
    """Follows versions."""
    engines: tuple[Engine, ...] = ()
    """`[[engines]]` each."""
    tags: tuple[str, ...] = ()
    """Words."""


def test_tables_that_may_be_there_or_not_and_any_number_of_times_are_opened():
    assert setting_rows(Settings) == [
        ("agent", "None", "Follows versions."),
        ("agent.drain_s", "5.0", "Seconds."),
        ("engines", "()", "`[[engines]]` each."),
        ("engines.url", "required", "Where it is, as `[[engines]]` says."),
        ("tags", "()", "Words."),
    ]


def test_brackets_are_shown_as_they_are(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    show_settings(Settings, "the test")
    assert "`[[engines]]` each." in capsys.readouterr().out


def test_in_a_pipe_nothing_is_cut(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    show_settings(RunConfig, "the test")
    shown = capsys.readouterr().out
    rows = [line.split("│") for line in shown.splitlines() if "│" in line]
    keys = [row[1].strip() for row in rows if row[1].strip()]
    assert keys == [key for key, _, _ in setting_rows(RunConfig)]
    assert "…" not in shown


def test_the_list_of_names_is_whole_in_a_pipe():
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "harnessgym", "list"]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT, env=env
    ).stdout
    for kind in set(REGISTRY) - {"service", "settings", "grader"}:
        for name, target in REGISTRY[kind].items():
            assert f" {name} " in shown
            assert f" {target} " in shown


def test_a_run_lists_the_settings_of_its_update():
    rows = {key: default for key, default, _ in setting_rows(RunConfig)}
    assert rows["trainer.update.lr"] == "0.0004"
    assert rows["trainer.update.loss"] == "'dapo'"
    assert rows["trainer.update.proximal.window"] == "None"
    assert rows["trainer.ppo.critic.lr"] == "0.001"
    assert "trainer.update" not in rows
    assert "trainer.update.temperature" not in rows  # sampling.temperature sets it
