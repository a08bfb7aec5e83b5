"""Heartbeats between real processes: what counts as silence, and what does not."""

import signal
import subprocess
import sys
import time

import pytest

from harnessgym.heartbeat import BEAT_S, VARIABLE, Heartbeat, HeartbeatListener, Silence

PRELUDE = "import asyncio, threading, time\nfrom harnessgym import heartbeat\n"
BUSY = """
heartbeat.begin()
print("up", flush=True)
import numpy as np
while True:
    np.linalg.svd(np.random.rand(300, 300))
"""
LOOP = """
async def main():
    heartbeat.begin()
    heartbeat.follow(asyncio.get_running_loop())
    print("up", flush=True)
    await asyncio.to_thread(input)
    time.sleep(600)
asyncio.run(main())
"""
ENDING = """
import ctypes
class Slow:
    usleep = ctypes.PyDLL(None).usleep  # keeps the lock that threads share
    def __del__(self):
        self.usleep(60_000_000)
slow = Slow()
heartbeat.begin()
print("up", flush=True)
"""
MUTE = "print('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def started():
    """Starts a program; its heartbeat's listener and its process."""
    made = []

    def start(program):
        listener = HeartbeatListener()
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=[listener.far.fileno()], env={VARIABLE: str(listener.far.fileno())},
        )  # fmt: skip
        listener.started()
        made.append((listener, process))
        assert process.stdout.readline() == "up\n"
        return listener, process

    yield start
    for listener, process in made:
        process.kill()
        process.communicate()
        listener.close()


def look_for(listener, seconds):
    """Look for a while, as a supervisor does; the longest silence that was seen."""
    deadline, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < deadline:
        longest = max(longest, listener.look().seconds)
        time.sleep(0.05)
    return longest


def wait_for(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_a_process_that_computes_all_the_time_is_not_silent(started):
    listener, _ = started(BUSY)
    wait_for(lambda: listener.look().phase == "running")
    assert look_for(listener, 6 * BEAT_S) < 5 * BEAT_S


def test_a_stopped_process_is_silent_until_it_goes_on(started):
    listener, process = started(LOOP)
    wait_for(lambda: listener.look().phase == "running")
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: listener.look().seconds > 4 * BEAT_S)
    assert listener.look().too_long(4 * BEAT_S)
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: listener.look() == Silence())


def test_a_process_whose_event_loop_hangs_is_silent_though_its_threads_run(started):
    listener, process = started(LOOP)
    wait_for(lambda: listener.look().phase == "running")
    process.stdin.write("\n")
    process.stdin.flush()
    wait_for(lambda: listener.look().seconds > 4 * BEAT_S)


def test_the_time_in_which_the_listener_itself_slept_is_no_silence(started):
    listener, process = started(LOOP)
    wait_for(lambda: listener.look().phase == "running")
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    listener.look()
    time.sleep(4.0)  # as one that was stopped together with everything else
    assert listener.look().seconds < 2.5
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: listener.look() == Silence())


def test_a_process_that_has_never_beaten_has_ten_minutes(started):
    listener, _ = started(MUTE)
    wait_for(lambda: listener.look().seconds > 1.0)
    silence = listener.look()
    assert silence.phase == "starting"
    assert not silence.too_long(0.5)
    assert Silence(599.0, "running").too_long(2.0)
    assert not Silence(599.0, "starting").too_long(2.0)
    assert Silence(600.0, "starting").too_long(2.0)
    assert not Silence(600.0, "ending").too_long(1000.0)


def test_a_process_that_has_ended_is_not_silent(started):
    listener, process = started(LOOP)
    process.kill()
    process.wait()
    time.sleep(0.2)
    assert listener.look().seconds == 0
    time.sleep(0.2)
    assert listener.look().seconds == 0


def test_a_process_that_shuts_down_says_so(started):
    listener, _ = started(ENDING)
    wait_for(lambda: listener.look().phase == "ending")
    wait_for(lambda: listener.look().seconds > 0.5)


def test_nobody_who_listens_holds_up_a_heart():
    listener = HeartbeatListener()
    heartbeat = Heartbeat(listener.far)
    for _ in range(200_000):  # more than the socket holds
        heartbeat._beat()
    assert listener.look() == Silence()
    listener.close()
    heartbeat._beat()
