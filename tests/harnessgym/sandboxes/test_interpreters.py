"""Which Python a command gets where it runs with this machine's. Containers have their own."""

import subprocess
import sys

import pytest

from harnessgym.sandboxes.forking import interpreter
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio
BACKENDS = ("process", "bubblewrap")


async def test_an_interpreter_that_is_named_by_its_path_is_the_one_that_runs(backend, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    python = str(tmp_path / "other/bin/python")
    readable = [str(tmp_path / "other")]
    async with backend.open(Limits()) as sandbox:
        said = await sandbox.exec([python, "-c", "import sys; print(sys.prefix)"], readable=readable)
        assert said.stdout.decode().strip() == readable[0], said


def test_only_a_bare_name_is_replaced():
    assert interpreter(["python3", "a.py"], "") == [sys.executable, "a.py"]
    assert interpreter(["python", "a.py"], "/opt/bin/python") == ["/opt/bin/python", "a.py"]
    assert interpreter(["/usr/bin/python3", "a.py"], "/opt/bin/python") == ["/usr/bin/python3", "a.py"]
    assert interpreter(["node", "a.js"], "") == ["node", "a.js"]
