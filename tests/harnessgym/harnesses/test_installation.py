"""Installing agents: each step once, failures told and resumed."""

import pytest

from harnessgym.errors import HarnessError
from harnessgym.harnesses.installation import install, installed
from harnessgym.sandbox import InstallStep


def append(path, text):
    return InstallStep(("sh", "-c", f'printf "%s" "$WORD" >> {path}'), {"WORD": text})


def test_each_step_runs_once_in_order_with_its_environment(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "agents"
    steps = [append(log, "a"), append(log, "b")]
    assert not installed(steps, folder)
    install(steps, folder)
    install([*steps, append(log, "c"), append(log, "a")], folder)
    assert log.read_text() == "abc"
    assert installed(steps, folder)


def test_a_failed_installation_says_why_and_goes_on_where_it_stopped(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "agents"
    steps = [
        append(log, "a"),
        InstallStep(("sh", "-c", f"test -e {tmp_path}/ready || {{ echo not yet >&2; exit 3; }}")),
        append(log, "b"),
    ]
    with pytest.raises(HarnessError, match=r"exited with 3\.\nnot yet"):
        install(steps, folder)
    assert not installed(steps, folder)
    (tmp_path / "ready").touch()
    install(steps, folder)
    assert log.read_text() == "ab"


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(HarnessError, match="no-such-program"):
        install([InstallStep(("no-such-program",))], tmp_path)
