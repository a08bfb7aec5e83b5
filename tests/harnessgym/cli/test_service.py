"""The list of settings of the commands that run one process, and of those that run many."""

import pytest

from harnessgym.cli.service import setting_rows, show_settings
from harnessgym.config import Config
from harnessgym.registry import load, names


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
