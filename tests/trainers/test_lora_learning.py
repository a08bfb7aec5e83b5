"""GRPO trains the shipped lookup task by adapters alone, in either type, from stored rows; not with
shuffled rewards.
"""

import numpy as np
import pytest
import torch

from tests.trainers.recorded_lookup import MODEL, Player, Recorder
from trainers.policies.loading import load_policy

STEPS = 14
OPTIONS = {"lora": {"rank": 8, "alpha": 16.0}, "update": {"lr": 5e-3}}


@pytest.fixture(scope="module")
def player():
    made = Player()
    yield made
    made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16"}, {"reward_shuffle": True}], ids=["float32", "bfloat16", "shuffled"]
)
def test_rewards_rise_by_what_they_say_and_by_nothing_else(tmp_path, player, options):
    run = Recorder(tmp_path / "run", player, **OPTIONS, **options)
    rewards = [run.step() for _ in range(STEPS)]
    found, start = run.learner.trained_policy.policy.published(), load_policy(MODEL).published()
    run.close()
    assert np.mean(rewards[:3]) < 0.5
    if options.get("reward_shuffle"):
        assert np.mean(rewards[-5:]) < 0.6
    else:
        assert np.mean(rewards[-5:]) > 0.7
    kept = {name for name, tensor in found.items() if torch.equal(tensor, start[name])}
    assert kept == {name for name in found if not name.endswith("_proj.weight")}
