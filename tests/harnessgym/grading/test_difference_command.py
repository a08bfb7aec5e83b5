"""Second opinions where people ask for them: `harnessgym tasks opinion`, and rollouts that are rewarded
with 1.
"""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from harnessgym.cli import app

pytestmark = pytest.mark.bubblewrap
ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
TASK = """\
[limits]
wall_s = 60

[[tests]]
kind = "call"
module = "lengths"
function = "longest"
cases = [{ args = [["a", "abc", "ab"]], result = "abc" }, { args = [["b"]], result = "b" }]
"""
GOLD = "def longest(words):\n    return max(words, key=len)\n"
OTHER = "def longest(words):\n    return sorted(words, key=len, reverse=True)[0]\n"
FITTED = "def longest(words):\n    return 'abc' if 'abc' in words else words[0]\n"
AGENT = """\
import openai, pathlib

openai.OpenAI().responses.create(model="policy", input="Hello")
pathlib.Path("lengths.py").write_text(pathlib.Path("{source}").read_text())
"""


@pytest.fixture
def tasks(tmp_path):
    folder = tmp_path / "tasks" / "longest"
    (folder / "gold").mkdir(parents=True)
    (folder / "task.toml").write_text(TASK)
    (folder / "instruction.md").write_text("Write lengths.py with longest(words).\n")
    (folder / "gold" / "lengths.py").write_text(GOLD)
    return folder.parent


def harnessgym(*words):
    return subprocess.run(
        [sys.executable, "-m", "harnessgym", *map(str, words)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def attempt(tmp_path):
    """Writes a folder with this solution."""

    def write(source):
        (tmp_path / "attempt").mkdir(exist_ok=True)
        (tmp_path / "attempt" / "lengths.py").write_text(source)
        return tmp_path / "attempt"

    return write


def test_a_folder_is_graded_and_compared(tasks, attempt):
    done = harnessgym("tasks", "opinion", tasks, "longest", attempt(OTHER), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["reward"], told["tampered"]) == (1.0, None)
    assert told["second_opinion"]["agrees"] is True


def test_a_folder_that_is_made_for_the_tests_is_found_out(tasks, attempt):
    words = list(map(str, ("tasks", "opinion", tasks, "longest", attempt(FITTED))))
    done, shown = (CliRunner().invoke(app(), [*words, *more]) for more in (["--json"], []))
    assert (done.exit_code, shown.exit_code) == (1, 1), done.output
    told = json.loads(done.stdout)
    assert (told["reward"], told["tampered"]) == (1.0, None)
    assert told["second_opinion"]["agrees"] is False
    assert "reward 1" in shown.stdout
    assert "lengths.longest([" in shown.stdout


def test_a_rollout_that_is_rewarded_carries_an_opinion_that_changes_no_reward(tasks, tmp_path):
    for path in tasks.glob("*/"):
        (path / "files").mkdir()
        (path / "files" / "fitted.txt").write_text(FITTED)
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT.format(source="fitted.txt"))
    run = tmp_path / "run"
    words = [
        "rollout",
        "--tasks",
        tasks,
        "--upstream",
        "scripted",
        "--folder",
        run,
        "--second-opinion",
        "evidence",
    ]
    done = harnessgym(*words, "--set", f'argv=["python", "{agent}"]', "--set", f'readable=["{agent}"]')
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert line["reward"] == 1.0, line
    sql = "SELECT grading FROM rollouts"
    shown = harnessgym("traces", "sql", run, sql, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "second_opinion" in shown.stdout
    assert "lengths.longest" in shown.stdout
