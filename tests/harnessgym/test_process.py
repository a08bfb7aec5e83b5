import os
import signal
import subprocess
import sys
import time

import pytest

from harnessgym.process import ProcessId, end, identify, interruption_deferred


def sleeper(code="import time; time.sleep(60)", **options):
    return subprocess.Popen([sys.executable, "-c", code], **options)


def test_an_identity_is_not_fooled_by_a_reused_pid():
    child = sleeper()
    found = identify(child.pid)
    assert found is not None
    assert found.alive()
    assert not ProcessId(child.pid, found.started + 1).alive()
    child.kill()
    child.wait()
    assert not found.alive()
    assert identify(child.pid) is None


def test_end_is_patient_and_then_is_not():
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); "
        "time.sleep(60)"
    )
    with sleeper(code, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout.read(1) == b"x"
        end(identify(stubborn.pid), grace_s=0.2)
        assert stubborn.wait(timeout=30) == -signal.SIGKILL


def test_a_child_dies_with_its_parent(tmp_path):
    pid_file = tmp_path / "pid"
    child = (
        "import os, time; from harnessgym.process import die_with_parent; die_with_parent(os.getppid()); "
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); "
                "time.sleep(60)"
            ),
        ]
    )
    deadline = time.monotonic() + 50
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    grandchild = identify(int(pid_file.read_text()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while grandchild.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not grandchild.alive()


def test_an_interruption_waits_for_the_block_it_must_not_tear():
    done = []

    def block():
        with interruption_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("whole")

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert done == ["whole"]


def test_an_interruption_that_python_drops_in_a_callback_comes_again():
    code = """
import os, signal, time
from harnessgym.process import hear_interruptions

class Stopped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

hear_interruptions()
try:
    Stopped()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""
    with sleeper(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as interrupted:
        assert interrupted.communicate(timeout=50) == (b"interrupted\n", b"")
