"""Real processes: what they share, and how they end."""

import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import PolicyError, TrainerError
from harnessgym.process import identify
from tests.trainers.together import together
from trainers.world import ALONE, World, launch

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
pytestmark = pytest.mark.timeout(120)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 5))
def test_parts_hold_every_row_once_and_differ_by_one_row_at_most(lengths, size):
    parts = World(0, size).parts(lengths)
    assert sorted(chain(*parts)) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    tokens = [sum(lengths[index] for index in part) for part in parts]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_alone_there_is_nobody_to_tell():
    ALONE.lead("update", 1)
    assert ALONE.broadcast({"a": 1}) == {"a": 1}
    assert ALONE.all_gather(3) == [3]


def speak(world):
    if world.rank == 0:
        world.lead("update", torch.ones(2), "x")
        world.lead()
        heard = []
    else:
        heard = [world.next_order(), world.next_order()]
    return heard, world.broadcast(f"of {world.rank}"), world.all_gather(world.rank)


def test_the_leader_is_heard_by_all_and_all_by_each(tmp_path):
    first, *others = together(tmp_path, 3, speak)
    assert first == ([], "of 0", [0, 1, 2])
    for heard, shared, all_gather in others:
        (name, tensor, text), nothing = heard
        assert (name, tensor.tolist(), text, nothing) == ("update", [1.0, 1.0], "x", ())
        assert (shared, all_gather) == ("of 0", [0, 1, 2])


def test_an_error_of_ours_is_raised_with_its_message_and_ends_all(tmp_path):
    def work(world):
        (tmp_path / f"{world.rank}").write_text(str(os.getpid()))
        world.all_gather(None)
        if world.rank == 0:
            raise PolicyError("The weights are gone.")
        world.next_order()

    with pytest.raises(TrainerError, match="The weights are gone"):
        launch(3, "cpu", work)
    assert not any(identify(int(path.read_text())) for path in tmp_path.iterdir())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_others_who_wait_for_it(tmp_path, victim):
    def work(world):
        (tmp_path / f"{world.rank}").write_text(str(os.getpid()))
        world.all_gather(None)
        if world.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        world.all_gather(None)

    with pytest.raises(
        SystemExit,
        match=rf"Of the 2 processes of the trainer rank {victim} \(pid \d+\) was killed by SIGKILL",
    ):
        launch(2, "cpu", work)
    assert not any(identify(int(path.read_text())) for path in tmp_path.iterdir())


def test_any_other_error_ends_all_and_is_in_the_log(tmp_path, capfd):
    def work(world):
        world.all_gather(None)
        if world.rank == 1:
            raise MemoryError("no room for rank 1")
        world.next_order() if world.rank else time.sleep(600)

    with pytest.raises(SystemExit, match=r"rank 1 \(pid \d+\) ended with status 1"):
        launch(2, "cpu", work)
    assert "MemoryError: no room for rank 1" in capfd.readouterr().err


WAITING = """
import sys, time
from pathlib import Path
from trainers.world import launch

def work(world):
    (Path(sys.argv[1]) / str(world.rank)).write_text("here")
    world.next_order() if world.rank else time.sleep(600)

launch(2, "cpu", work)
"""


def test_they_die_with_who_started_them(tmp_path):
    with subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], cwd=ROOT) as process:
        try:
            _wait(lambda: len(list(tmp_path.iterdir())) == 2)
            members = [identify(int(pid)) for pid in _children(process.pid)]
            assert len(members) == 2
        finally:
            process.kill()
        _wait(lambda: not any(member.alive() for member in members))


def _children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _wait(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
