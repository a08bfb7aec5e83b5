"""What a process shares between its environments, and what is left of that when it ends without closing any."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import concurrent.futures.thread, multiprocessing, sys, threading, time
del threading._register_atexit  # what is private to Python may be gone in its next version

import environments.workspace.backend_pool
from tests.environments.playing import make, run

assert threading.enumerate() == [threading.main_thread()], "importing started something"

def echo(text):
    assert env.step(run(f"echo {text}"))[0]["output"] == f"{text}\\n"
    print(text)

def play():
    global env
    env = make(sandbox="process", sandbox_settings={"workspace_root": sys.argv[1]})
    env.reset(seed=0, options={"task_id": "few/plain"})
    echo("began")

def go_on():
    time.sleep(1.0)
    echo("went on")
"""
ENDS = {
    "the end of the program": ("play()", 0),
    "an exit": ("play(); sys.exit(3)", 3),
    "an error": ("play(); 1 / 0", 1),
    "a thread that goes on": ("play(); threading.Thread(target=go_on).start()", 0),
    "a child process": (
        "child = multiprocessing.get_context('fork').Process(target=play); child.start(); child.join()",
        0,
    ),
}


def working_in(folder):
    """Command lines of the processes whose working folder is, or was, in `folder`."""
    out = []
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/cwd").startswith(str(folder)):
                out.append(process.cmdline())
        except (OSError, psutil.Error):
            continue
    return out


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_closes_what_it_forgot(tmp_path, end):
    program, status = ENDS[end]
    command = [sys.executable, "-c", f"{BEGIN}\n{program}\n", str(tmp_path / "w")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout.split("\n")[:-1] == ["began"] + ["went on"] * (end == "a thread that goes on")
    if end == "an error":
        assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    else:
        assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert [path.name for path in (tmp_path / "w").iterdir() if path.is_dir()] == []
    assert working_in(tmp_path) == []
