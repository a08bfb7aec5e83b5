import subprocess
import sys

import pytest


def test_the_runner_is_the_one_that_was_pinned():
    assert pytest.__version__ == "8.4.1"


@pytest.mark.parametrize("number", [0, 3, -2])
def test_it_doubles(number):
    code = f"import double; print(double.double({number}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/app", capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(2 * number)
