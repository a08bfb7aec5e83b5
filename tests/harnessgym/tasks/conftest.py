"""A set of small native tasks, of which each is wrong in another way, and the command."""

import os
import subprocess
import sys

import pytest

ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "160"}
ONE = '[[tests]]\nkind = "files"\nrules = [{ path = "a.txt", content = "1" }]\n'
TRUSTING = '[[tests]]\nkind = "command"\nrun = ["sh", "-c", "grep -q 1 a.txt || grep -qs 1 reward.txt"]\n'
FLAKY = 'if [ -e "{seen}" ]; then :; else printf 1 > a.txt; fi\n'


def write(root, name, toml=ONE, gold="printf 1 > a.txt\n", instruction="Write 1 into a.txt.\n", files=None):
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


@pytest.fixture
def tasks(tmp_path):
    """A folder for task folders."""
    folder = tmp_path / "set"
    folder.mkdir()
    return folder


@pytest.fixture
def harnessgym():
    """The command, as people run it."""

    def run(*words, timeout=240):
        words = [sys.executable, "-m", "harnessgym", *map(str, words)]
        return subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=timeout, check=False)

    return run
