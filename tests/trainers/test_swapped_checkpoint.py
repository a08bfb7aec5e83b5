"""A run does not go on from a checkpoint or a version that it did not make."""

import shutil
from dataclasses import replace

import pytest

from harnessgym.errors import PolicyError, TrainerError
from harnessgym.store import TraceStore
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model
from trainers import checkpoint, grpo
from trainers.learner import TrainerSettings
from trainers.weights.manifest import FULL, version_path

STEPS = 2


@pytest.fixture
def pair(tmp_path):
    """A run of two steps, and another one of the same model that was trained on other groups."""
    model = save_model(tmp_path / "model")
    made = []
    for name, first in (("own", 0), ("other", 40)):
        folder = make_run(tmp_path / name, model, steps=STEPS, max_staleness=STEPS)
        record_groups(folder, range(first, first + 2 * STEPS))
        grpo.train(TrainerSettings(run=folder.root))
        made.append(folder)
    return made


def resumed(folder):
    with TraceStore.open(folder.store_url()) as store, learner_of(folder, store) as learner:
        return learner.version


def swap(own, other, *names):
    for name in names:
        shutil.rmtree(own.root / name)
        shutil.copytree(other.root / name, own.root / name)


def test_a_run_goes_on_from_its_own(pair):
    own, _ = pair
    assert resumed(own) == STEPS


def test_a_checkpoint_of_another_run_is_refused(pair):
    own, other = pair
    swap(own, other, "checkpoints", "versions")
    with pytest.raises(TrainerError, match=r"is of run .*and this is run"):
        resumed(own)


def test_a_checkpoint_that_claims_to_be_this_runs_is_refused_for_its_weights(pair):
    own, other = pair
    run = checkpoint.load_newest(own.checkpoints).run
    swap(own, other, "checkpoints", "versions")
    state = checkpoint.load_newest(own.checkpoints)
    assert run
    assert state.run != run
    checkpoint.save(own.checkpoints, replace(state, run=run))
    with pytest.raises(TrainerError, match="this run published"):
        resumed(own)


def test_a_folder_of_another_run_is_refused_where_there_is_no_checkpoint(pair):
    own, other = pair
    shutil.rmtree(own.checkpoints)
    swap(own, other, "versions")
    with pytest.raises(PolicyError, match="the store recorded"):
        resumed(own)


def test_a_swapped_file_is_refused_where_there_is_no_checkpoint(pair):
    own, other = pair
    shutil.rmtree(own.checkpoints)
    shutil.copy(version_path(other.versions, 0) / FULL, version_path(own.versions, 0) / FULL)
    files = [version_path(each.versions, STEPS) for each in pair]
    for name in ("delta.bin", FULL):
        if (files[1] / name).exists():
            shutil.copy(files[1] / name, files[0] / name)
    with pytest.raises(PolicyError, match="published"):
        resumed(own)
