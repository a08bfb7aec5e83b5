"""What a leader asks of its trainee, real followers do too."""

import copy
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harnessgym.errors import ConfigError, TrainerError
from tests.trainers.recorded_run import make_run, save_model
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers.checkpoint import RandomState
from trainers.trained_policy import TrainedPolicy
from trainers.world import World

ROOT = Path(__file__).parents[2]
ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.5]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def config(tmp_path):
    return make_run(tmp_path / "run", save_model(tmp_path / "model")).config()


def as_leader(world, config, work):
    """What the leader finds; followers follow."""
    trained_policy = TrainedPolicy(config, world)
    if world.rank:
        trained_policy.follow()
        return None
    found = work(trained_policy)
    trained_policy.dismiss()
    return found


def some_steps(trained_policy):
    first = trained_policy.update(make_rows(1), ADVANTAGES)
    saved = copy.deepcopy(trained_policy.state())  # the optimizer's tensors go on
    trained_policy.begin()
    for row, advantage in zip(make_rows(2), ADVANTAGES, strict=True):
        trained_policy.add([row], [advantage])
    second = trained_policy.step()
    expected = trained_policy.state()
    trained_policy.load(*saved)
    trained_policy.update(make_rows(2), ADVANTAGES)
    return first, second, expected, trained_policy.state()


def test_a_leader_and_its_followers_do_what_one_does(tmp_path, config):
    (first, second, streamed, at_once), follower = together(
        tmp_path / "two", 2, as_leader, config, some_steps
    )
    alone = some_steps(TrainedPolicy(config))
    assert follower is None
    assert first.loss == pytest.approx(alone[0].loss, rel=1e-5)
    assert second.grad_norm == pytest.approx(alone[1].grad_norm, rel=1e-4)
    for weights, optimizer, _ in (streamed, at_once):
        for name, tensor in alone[3][0].items():
            assert torch.allclose(weights[name], tensor, rtol=1e-4, atol=2e-5)
        assert optimizer["state"][0]["step"] == 2


def draws():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def generators_after(world, config, known):
    """What each process draws when it has gone on from the generators of `known` processes."""
    trained_policy = TrainedPolicy(config, world)
    own = RandomState.here()
    if world.rank:
        trained_policy.follow()
    else:
        weights, optimizer, _ = trained_policy.state()
        trained_policy.load(weights, optimizer, known)
        trained_policy.dismiss()
    drawn = draws()
    own.restore()
    return drawn, draws()


@pytest.mark.parametrize("known", [1, 3])
def test_each_process_takes_its_own_generators_and_who_is_new_keeps_those_of_the_seed(
    tmp_path, config, known
):
    states, expected = [], []
    for seed in range(known):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        states.append(RandomState.here())
        expected.append(draws())
    found = together(tmp_path / "two", 2, generators_after, config, tuple(states))
    assert found[0][0] == expected[0]
    assert found[1][0] == (expected[1] if known > 1 else found[1][1])
    assert found[0][1] != found[1][1]


def test_a_gpu_that_is_not_there_is_told(config):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(TrainerError, match=r"the trainer needs 1 GPUs.*there are 0"):
        TrainedPolicy(config, World(device="cuda"))


def test_wrong_settings_of_the_update_are_told(tmp_path):
    config = make_run(tmp_path / "run", save_model(tmp_path / "model"), update={"lr": -1}).config()
    with pytest.raises(ConfigError, match="lr"):
        TrainedPolicy(config)


def test_one_process_does_not_pay_for_the_import_of_shards():
    code = "import sys, trainers.grpo; print('torch.distributed.fsdp' in sys.modules, 'trainers.shards' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"]


def scores_between_parts(trained_policy):
    texts = [row.ids for row in make_rows(1)]
    before = trained_policy.score(texts, [2] * len(texts))
    trained_policy.begin()
    trained_policy.add(make_rows(1)[:1], ADVANTAGES[:1])
    between = trained_policy.score(texts, [2] * len(texts))
    trained_policy.add(make_rows(1)[1:], ADVANTAGES[1:])
    trained_policy.step()
    return before, between, trained_policy.score(texts, [2] * len(texts)), trained_policy.state()[0]


def test_scores_are_the_same_in_shards_and_leave_the_step_alone(tmp_path, config):
    (before, between, after, _), _ = together(tmp_path / "two", 2, as_leader, config, scores_between_parts)
    alone = scores_between_parts(TrainedPolicy(config))
    assert before == between == pytest.approx(alone[0], rel=1e-5)
    assert after == pytest.approx(alone[2], rel=1e-3)
    assert after != before
    untouched = TrainedPolicy(config)
    untouched.begin()
    untouched.add(make_rows(1)[:1], ADVANTAGES[:1])
    untouched.add(make_rows(1)[1:], ADVANTAGES[1:])
    untouched.step()
    assert all(torch.equal(alone[3][name], tensor) for name, tensor in untouched.state()[0].items())


def two_steps_on_a_batch(trained_policy):
    rows = make_rows(1)
    before = trained_policy.recomputed(rows)
    metrics = [trained_policy.update(rows, ADVANTAGES, proximal=before) for _ in range(2)]
    return before, metrics[-1].loss, trained_policy.state()[0]


def test_what_several_steps_clip_against_is_scored_by_leader_and_followers(tmp_path):
    update = {"lr": 0.01, "loss": "decoupled_ppo", "proximal": "recompute", "corrections": ["mis"]}
    given = {"algorithm": "ppo", "update": update | {"epochs": 2}}
    config = make_run(tmp_path / "run", save_model(tmp_path / "model"), **given).config()
    (before, loss, weights), _ = together(tmp_path / "two", 2, as_leader, config, two_steps_on_a_batch)
    alone = two_steps_on_a_batch(TrainedPolicy(config))
    for found, expected in zip(before, alone[0], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert loss == pytest.approx(alone[1], rel=1e-3)
    assert all(
        torch.allclose(weights[name], tensor, rtol=1e-4, atol=2e-5) for name, tensor in alone[2].items()
    )
