"""Estimators that look at more than one reward train the shipped tasks from stored rows; with shuffled
rewards they do not.

Each arm takes 20 steps of 32 rollouts that the newest weights play: the lookup, or the pair of agents of
which the second is asked where the first is unsure.
"""

import numpy as np
import pytest

from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_lookup import Player, Recorder

STEPS = 20
RATES = {"look_up": 1e-3, "pair": 5e-4}


@pytest.fixture(scope="module")
def player():
    made = Player()
    yield made
    made.close()


@pytest.fixture
def make(tmp_path, player):
    """`make(kind, **trainer)`: a run that is played here."""
    made = []

    def make(kind, **trainer):
        made.append(
            Recorder(tmp_path / f"run-{len(made)}", player, kind, update={"lr": RATES[kind]}, **trainer)
        )
        return made[-1]

    yield make
    for recorder in made:
        recorder.close()


ARMS = [("look_up", "hgpo"), ("pair", "m_grpo"), ("look_up", "igpo")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "name"), ARMS)
def test_rewards_of_what_is_sampled_rise(make, kind, name):
    run = make(kind, advantage=name)
    rewards = [run.step() for _ in range(STEPS)]
    assert np.mean(rewards[:3]) < 0.5
    assert np.mean(rewards[-5:]) > 0.75
    assert verify(run.store).findings == ()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "name"), ARMS)
def test_rewards_that_say_nothing_teach_nothing(make, kind, name):
    run = make(kind, advantage=name, reward_shuffle=True)
    rewards = [run.step() for _ in range(STEPS)]
    assert np.mean(rewards[-5:]) < 0.6
