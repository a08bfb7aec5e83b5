"""`python -m environments.check`: gymnasium's own checker on the shipped ids."""

import subprocess
import sys
from pathlib import Path

from environments import check

ROOT = Path(__file__).parents[2]


def run(*options):
    command = [sys.executable, "-m", "environments.check", "harnessgym/Code-v0", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_shipped_environment_passes():
    assert check.check("harnessgym/Code-v0", "process") == ""


def test_an_environment_that_cannot_be_made_fails_the_command():
    done = run("--sandbox", "nowhere")
    assert done.returncode == 1
    assert "harnessgym/Code-v0 (nowhere): ConfigError: " in done.stdout
