"""PPO trains the shipped lookup task from stored rows; with shuffled rewards it does not. One rollout is a
group.
"""

import numpy as np
import pytest

from tests.trainers.recorded_lookup import Player, Recorder

STEPS = 14
OPTIONS = {
    "algorithm": "ppo",
    "groups_per_step": 32,
    "group_size": 1,
    "update": {"lr": 5e-4, "epochs": 2},
}


@pytest.fixture(scope="module")
def player():
    made = Player()
    yield made
    made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shuffled", [False, True])
def test_rewards_rise_by_what_they_say_and_by_nothing_else(tmp_path, player, shuffled):
    run = Recorder(tmp_path / "run", player, reward_shuffle=shuffled, **OPTIONS)
    rewards = [run.step() for _ in range(STEPS)]
    run.close()
    assert np.mean(rewards[:3]) < 0.5
    if shuffled:
        assert np.mean(rewards[-5:]) < 0.6
    else:
        assert np.mean(rewards[-5:]) > 0.7
