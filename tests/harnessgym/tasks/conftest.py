"""Small native tasks of which each is wrong in another way, a set in Python, and the command as people run
it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harnessgym.cli import app
from harnessgym.errors import HarnessGymError
from tests.harnessgym.tasks.sets import FOLDER

ROOT = Path(__file__).parents[3]
ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "160"}
ONE = '[[tests]]\nkind = "files"\nrules = [{ path = "a.txt", content = "1\\n" }]\n'
TRUSTING = {"tests/run.sh": "grep -qs 1 a.txt || grep -qs 1 reward.txt\n"}


def write_task(
    root, name, toml=ONE, gold="echo 1 > a.txt\n", instruction="Write 1 into a.txt.\n", files=None
):
    """A task folder."""
    where = root / name
    where.mkdir(parents=True)
    (where / "task.toml").write_text(toml)
    (where / "instruction.md").write_text(instruction)
    if gold is not None:
        (where / "gold.sh").write_text(gold)
    for path, text in (files or {}).items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_text(text)
    return where


def write_set(root):
    """One good task, and one for each thing that can be wrong."""
    write_task(root, "good")
    write_task(root, "malformed", toml='split = "both"\n' + ONE)
    write_task(root, "broken", gold="echo 2 > a.txt\n")
    write_task(root, "free", toml='[[tests]]\nkind = "files"\nrules = [{ path = "b.txt", absent = true }]\n')
    write_task(root, "cheatable", toml='[[tests]]\nkind = "command"\n', files=TRUSTING)
    write_task(root, "unsolved", gold=None)
    write_task(root, "contained", toml='image = "debian:13"\n' + ONE)
    return root


@pytest.fixture
def mixed(tmp_path):
    """A folder with all of them."""
    return write_set(tmp_path / "mixed")


@pytest.fixture
def harnessgym(tmp_path):
    """Runs `harnessgym tasks check ...` and the like; the sets in Python lie in `tmp_path`."""

    def run(*words, timeout=240):
        words = [sys.executable, "-m", "harnessgym", *map(str, words)]
        env = ENV | {FOLDER: str(tmp_path)}
        return subprocess.run(
            words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )

    return run


@pytest.fixture
def here(tmp_path):
    """The same in this process, which is quicker, for what needs no process of its own."""

    def run(*words):
        env = {"COLUMNS": "160", "NO_COLOR": "1", FOLDER: str(tmp_path)}
        ran = CliRunner(env=env).invoke(app(), list(map(str, words)))
        if isinstance(ran.exception, HarnessGymError):
            return subprocess.CompletedProcess(words, 2, ran.stdout, f"{ran.stderr}{ran.exception}")
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return subprocess.CompletedProcess(words, ran.exit_code, ran.stdout, ran.stderr)

    return run
