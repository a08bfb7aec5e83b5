"""Where settings find the key of the control routes, and who is shown it."""

import pytest

from harnessgym.cli.service import show_settings
from harnessgym.registry import load

REQUIRED = {
    "node": {"run": "r", "control_url": "http://c", "proxy_url": "http://p", "sandbox": "process"},
    "proxy": {"store": "sqlite:///x", "run_id": "r", "policy": "p"},
}


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_it_comes_from_the_environment_if_it_is_not_given(name, monkeypatch):
    model = load("settings", name)
    monkeypatch.setenv("HARNESSGYM_CONTROL_KEY", "from outside")
    assert model(**REQUIRED[name]).control_key == "from outside"
    settings = model(**REQUIRED[name], control_key="given")
    assert settings.control_key == "given"
    assert "given" not in repr(settings)


def test_an_agents_comes_from_there_too(monkeypatch):
    agent = load("settings", "engine").model_fields["agent"].annotation.__args__[0]
    told = {"store": "sqlite:///x", "policy_id": "p", "run_id": "r"}
    monkeypatch.delenv("HARNESSGYM_CONTROL_KEY", raising=False)
    assert agent(**told).control_key == ""
    monkeypatch.setenv("HARNESSGYM_CONTROL_KEY", "from outside")
    assert agent(**told).control_key == "from outside"


@pytest.mark.parametrize("name", ["proxy", "node", "weights-agent"])
def test_a_list_of_settings_names_the_variable_and_not_the_key(name, monkeypatch, capsys):
    monkeypatch.setenv("HARNESSGYM_CONTROL_KEY", "swordfish")
    monkeypatch.setenv("COLUMNS", "300")
    show_settings(load("settings", name), name)
    said = capsys.readouterr().out
    assert "$HARNESSGYM_CONTROL_KEY" in said
    assert "swordfish" not in said
