import random

import numpy as np
import pytest
import torch

from harnessgym.errors import TrainerError
from trainers import checkpoint
from trainers.checkpoint import Checkpoint, RandomState


def state(step):
    return Checkpoint(
        step,
        step,
        {"w": torch.full((3,), float(step))},
        {"lr": 0.1},
        (RandomState.here(),),
        None,
        {"reward": 0.5},
    )


def test_the_newest_is_loaded_whole(tmp_path):
    for step in range(4):
        checkpoint.save(tmp_path, state(step))
    found = checkpoint.load_newest(tmp_path)
    assert (found.step, found.version, found.metrics) == (3, 3, {"reward": 0.5})
    assert torch.equal(found.weights["w"], torch.full((3,), 3.0))


def test_every_generator_goes_on_where_it_was(tmp_path):
    checkpoint.save(tmp_path, state(0))

    def draw():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    drawn = draw()
    assert draw() != drawn
    checkpoint.load_newest(tmp_path).randoms[0].restore()
    assert draw() == drawn


def test_only_the_newest_two_are_kept(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, state(step))
    assert checkpoint.steps(tmp_path) == [3, 4]


def test_there_may_be_none(tmp_path):
    assert checkpoint.load_newest(tmp_path / "nowhere") is None


def test_what_was_being_written_when_the_trainer_died_is_ignored_and_removed(tmp_path):
    checkpoint.save(tmp_path, state(1))
    (tmp_path / ".writing-x").mkdir()
    (tmp_path / ".writing-x" / "state.pt").write_bytes(b"half")
    assert checkpoint.load_newest(tmp_path).step == 1
    assert not (tmp_path / ".writing-x").exists()


def test_a_damaged_checkpoint_names_itself_and_the_remedy(tmp_path):
    path = checkpoint.save(tmp_path, state(1)) / "state.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainerError, match=r"step-000001.*Remove its folder"):
        checkpoint.load_newest(tmp_path)


def test_saving_the_same_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, state(1))
    checkpoint.save(tmp_path, state(1))
    assert checkpoint.steps(tmp_path) == [1]


def test_a_checkpoint_of_another_release_is_refused_with_what_to_do(tmp_path):
    path = checkpoint.save(tmp_path, state(1)) / "state.pt"
    torch.save(torch.load(path, weights_only=False) | {"randoms": (torch.get_rng_state(),)}, path)
    with pytest.raises(TrainerError, match=r"another release made it.*Remove its folder"):
        checkpoint.load_newest(tmp_path)


def test_a_checkpoint_of_a_trainer_that_was_one_process_is_read(tmp_path):
    path = checkpoint.save(tmp_path, state(1)) / "state.pt"
    values = torch.load(path, weights_only=False)
    (values["random"],) = values.pop("randoms")
    torch.save(values, path)
    (found,) = checkpoint.load_newest(tmp_path).randoms
    assert torch.equal(found.torch, values["random"].torch)
