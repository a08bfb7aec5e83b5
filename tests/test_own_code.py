"""Modules of the user's own: found beside the run file and in the working folder, in every process of a
run.
"""

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from tests.harnessgym.rollout.tiny import write_harnesses
from tests.support.command import run_here

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "environments/lookup/policy"
PUZZLES = """
from harnessgym.task import Grade, Limits, Solution, Task

class Puzzles:
    name = "puzzles"

    def tasks(self, split):
        return [
            Task(f"{split}/{i}", "Write answer.txt.", split, limits=Limits(wall_s=60), grader="my_puzzles:grade",
                 solution=Solution({"answer.txt": "yes"}))
            for i in range(4)
        ]

def grade(task, workspace):
    return Grade({"reward": float((workspace / "answer.txt").is_file())})
"""
EXTENSIONS = """
import numpy as np
from harnessgym.config import Config
from harnessgym.reward import Score

def centred(rewards):
    values = np.asarray(rewards, dtype=float)
    return values - values.mean()

class Steady:
    settings, needs = Config, frozenset()

    def __init__(self, settings):
        pass

    async def score(self, record):
        return [Score("rollout", "", "steady", 0.5)]
"""


def harnessgym(*arguments, cwd, timeout_s=60):
    """As the console script starts it: the working folder is not on Python's path."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-P", "-m", "harnessgym", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": path},
        check=False,
    )


def refused(result):
    """The one message of a command that refused."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    return result.stderr.partition("harnessgym: ")[2]


def test_a_task_set_is_imported_from_the_working_folder(tmp_path):
    (tmp_path / "my_puzzles.py").write_text(PUZZLES)
    listed = harnessgym("tasks", "list", "my_puzzles:Puzzles", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "train/3" in listed.stdout


@pytest.mark.bubblewrap
def test_a_task_set_of_the_working_folder_is_checked(tmp_path):
    (tmp_path / "my_puzzles.py").write_text(PUZZLES)
    command = ["tasks", "check", "my_puzzles:Puzzles", "--cheats", "none", "--limit", "2"]
    checked = harnessgym(*command, cwd=tmp_path, timeout_s=200)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (tmp_path / "baseline.json").exists()


def test_the_installed_module_wins_over_a_file_of_that_name(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('the file of the user')")
    (tmp_path / "my_puzzles.py").write_text("import random\n" + PUZZLES)
    listed = harnessgym("tasks", "list", "my_puzzles:Puzzles", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr


def test_a_module_that_is_not_there_says_where_it_was_looked_for(tmp_path):
    said = refused(harnessgym("tasks", "check", "my_puzzles:Puzzles", cwd=tmp_path))
    for part in (
        "my_puzzles:Puzzles",
        "no module 'my_puzzles'",
        str(tmp_path),
        "my_puzzles.py",
        'code = ["FOLDER"]',
    ):
        assert part in said
    assert "pip install" not in said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("import nowhere_at_all\n", ["my_puzzles.py:1", "imports 'nowhere_at_all'", "not installed"]),
        ("\nclass Puzzles(:\n", ["my_puzzles.py:2", "SyntaxError"]),
        ("\n\nraise ValueError('no data folder')\n", ["my_puzzles.py:3", "ValueError: no data folder"]),
        ("from json import nothing\n", ["my_puzzles.py:1", "cannot import name 'nothing'"]),
        ("Puzzle = 1\n", ["my_puzzles.py)", "has no 'Puzzles'"]),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_message(tmp_path, text, parts):
    (tmp_path / "my_puzzles.py").write_text(text)
    try:
        with chdir(tmp_path):
            said = refused(run_here(["tasks", "check", "my_puzzles:Puzzles"], COLUMNS="200"))
    finally:
        sys.modules.pop("my_puzzles", None)
    for part in parts:
        assert part in said
    assert "pip install" not in said


def test_every_process_of_a_run_imports_what_lies_beside_its_file(tmp_path):
    """Task set beside the run file, advantage and reward in a folder that it names, started from somewhere
    else.
    """
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project / "lib", elsewhere):
        folder.mkdir(parents=True)
    (project / "my_puzzles.py").write_text(PUZZLES)
    (project / "lib/my_extensions.py").write_text(EXTENSIONS)
    config = {
        "name": "own",
        "code": ["lib"],
        "policy": {"path": str(POLICY)},
        "tasks": {"set": "my_puzzles:Puzzles"},
        "harnesses": write_harnesses(tmp_path, ["good"]),
        "rewards": [{"type": "my_extensions:Steady"}],
        "sandbox": {"backend": "process"},
        "sampling": {"max_tokens": 8},
        "engine": {"workers": 1, "max_length": 256},
        "trainer": {"steps": 1, "groups_per_step": 2, "group_size": 2, "advantage": "my_extensions:centred"},
        "evaluation": {"tasks": 0},
    }
    (project / "run.json").write_text(json.dumps(config))
    command = ["train", "../project/run.json", "--folder", tmp_path / "run"]
    done = harnessgym(*command, cwd=elsewhere, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = json.loads((tmp_path / "run/config.json").read_text())
    assert recorded["code"] == [str(project / "lib"), str(project), str(elsewhere)]
    again = harnessgym(*command, cwd=project, timeout_s=200)  # from another folder it is the same run
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_machine_of_a_cluster_imports_what_the_run_names(tmp_path):
    (tmp_path / "my_sandbox.py").write_text(
        "class Walls:\n    unavailable = staticmethod(lambda: 'no walls here')\n"
    )
    program = (
        "import sys; from harnessgym.cluster.process_host import ProcessHost\n"
        "host = ProcessHost('127.0.0.1', 0, 60.0)\n"
        "print(host.about([], 'my_sandbox:Walls', [sys.argv[1]]).lacks)\n"
        "host.end()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False, cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "no walls here\n", done.stderr
