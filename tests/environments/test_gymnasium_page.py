"""Every Python program of the page about gymnasium, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gymnasium.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXPECTED = ("0.0 True valid", "0.0 True finished", "", "[1.0, 1.0, 1.0]")
"""How each program's output ends."""


@pytest.mark.bubblewrap
@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_what_the_page_shows_runs(number, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(
        command, cwd=ROOT, env=None, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(EXPECTED[number])


def test_no_program_is_left_out():
    assert len(PROGRAMS) == len(EXPECTED)
