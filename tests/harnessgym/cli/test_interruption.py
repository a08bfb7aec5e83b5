"""The first signal ends a command cleanly; its clean-up is not interrupted by a second."""

import asyncio
import os
import signal

import pytest

from harnessgym.cli.interruption import _once, run_interruptible


async def answer():
    return 7


def test_work_that_ends_returns_its_result():
    assert run_interruptible(answer()) == 7


def test_an_error_of_the_work_is_its_own():
    async def fail():
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        run_interruptible(fail())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_work_with_status_130(number, capsys):
    steps = []

    async def work():
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(10)
            steps.append("went on")
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    with pytest.raises(SystemExit) as caught:
        run_interruptible(work())
    assert caught.value.code == 130
    assert steps == ["cleaned up"]
    assert capsys.readouterr().err.startswith("Interrupted.")


def test_an_act_is_done_once():
    done = []
    act = _once(lambda: done.append(1))
    act()
    act()
    assert done == [1]
