"""A test that fails and then passes alone is named, recorded and counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import flakes
from tests.support.flakes import Flake, FlakeRecord

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support.flakes import FlakePlugin

def pytest_addoption(parser):
    parser.addoption("--flakes", action="store_true")

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakePlugin(config))
"""
TESTS = """
from pathlib import Path

def test_passes():
    pass

def test_flakes():
    ran = Path(__file__).with_name("ran")
    first = not ran.exists()
    ran.touch()
    assert not first, "the first time | is always hard"

def test_fails():
    assert 1 == 2
"""
PAGE = "# Page\n\n<!-- Written by `python -m tests.suites.flakes`. -->\n<!-- End of the flakes. -->\n\nThe rest.\n"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/conftest.py").write_text(CONFTEST)
    (tmp_path / "suite/test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntestpaths = suite\npythonpath = {ROOT}\n")

    def pytest_run(*options):
        # Of other plugins only the one for parallel runs matters; loading all takes longer than the tests.
        command = [sys.executable, "-m", "pytest", "-p", "xdist", *options]
        env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return pytest_run


@pytest.mark.parametrize("parallel", [(), ("--numprocesses", "2")])
def test_a_failure_that_passes_alone_is_a_flake(run, tmp_path, parallel):
    assert run(*parallel).returncode == 1
    again = run("--last-failed", "--flakes")
    assert again.returncode == 1
    assert "= 1 flake =" in again.stdout
    assert (
        "FLAKE suite/test_it.py::test_flakes - AssertionError: the first time | is always hard\n"
        in again.stdout
    )
    assert "FLAKE suite/test_it.py::test_fails" not in again.stdout
    record = FlakeRecord.from_dict(json.loads((tmp_path / ".pytest_cache/v/harnessgym/flakes").read_text()))
    assert record.runs == 1
    assert [flake.test for flake in record.flakes] == ["suite/test_it.py::test_flakes"]


def test_a_test_that_was_repaired_is_no_flake(run, tmp_path):
    assert run("suite/test_it.py").returncode == 1
    assert "flake" not in run("--last-failed").stdout.replace("test_flakes", "")
    assert json.loads((tmp_path / ".pytest_cache/v/harnessgym/flakes").read_text()) == {
        "runs": 0,
        "flakes": [],
    }


def test_without_a_cache_nothing_is_recorded(run, tmp_path):
    assert run("-p", "no:cacheprovider").returncode == 1
    assert not (tmp_path / ".pytest_cache").exists()


def test_the_page_counts_across_records(tmp_path):
    flake = Flake("tests/test_a.py::test_a[x|y]", "assert 1 | 2", "abc1234", "2025-01-01")
    other = Flake("tests/test_b.py::test_b", "Timeout", "abc1234", "2025-01-02")
    page = flakes.updated(PAGE, FlakeRecord(2, [flake, other]))
    page = flakes.updated(page, FlakeRecord(3, [Flake(flake.test, "assert 3 | 4", "def5678+", "2025-01-03")]))
    assert page == flakes.updated(page, FlakeRecord())
    assert "Whole runs of the suite: 5.\n" in page
    assert [line for line in page.splitlines() if line.startswith("| `")] == [
        r"| `tests/test_a.py::test_a[x\|y]` | 2 | 2025-01-03, `def5678+` | assert 3 \| 4 |",
        "| `tests/test_b.py::test_b` | 1 | 2025-01-02, `abc1234` | Timeout |",
    ]
    assert page.startswith("# Page\n\n")
    assert page.endswith("\n\nThe rest.\n")


def test_a_record_is_counted_once(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    record = tmp_path / "flakes"
    record.write_text('{"runs": 4, "flakes": []}')
    for _ in range(2):
        flakes.main([str(record), "--page", str(page)])
    assert "Whole runs of the suite: 4.\n\nNo flake was recorded.\n" in page.read_text()
    assert "0 flakes of 4 whole runs added" in capsys.readouterr().out


def test_the_project_has_a_page_that_counts_them():
    flakes.updated((ROOT / "docs/reliability.md").read_text(), FlakeRecord())
