"""The moving average: its closed form, its reset, its state, in one process and in two."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.recorded_run import make_run, save_model
from tests.trainers.test_trained_policy import ADVANTAGES, as_leader
from tests.trainers.test_update import make_policy, make_rows
from tests.trainers.together import together
from trainers.held_weights import copies
from trainers.policy import token_logprobs
from trainers.proximal import MovingAverage
from trainers.trained_policy import TrainedPolicy
from trainers.update import UpdateMetrics
from trainers.update_settings import Ewma, UpdateSettings
from trainers.world import ALONE

pytestmark = pytest.mark.timeout(120)
UPDATE = {"lr": 0.05, "proximal": {"name": "ewma", "reset_below": 0.0}, "corrections": ["tis"]}


def told(masked=0.0):
    return UpdateMetrics(**dict.fromkeys(UpdateMetrics.__dataclass_fields__, 0.0) | {"masked": masked})


def moved(policy, seed):
    """Other weights, as a step would leave them."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return copies(policy)


def average_of(policy, window=2, reset_below=0.9):
    update = UpdateSettings.model_validate(UPDATE)
    return MovingAverage(policy, update, Ewma(window=window, reset_below=reset_below), ALONE)


@settings(max_examples=20, deadline=None)
@given(window=st.integers(1, 8), steps=st.integers(0, 6), resets=st.sets(st.integers(0, 5)))
def test_the_average_is_the_sum_that_it_stands_for(window, steps, resets):
    policy = make_policy()
    average, history = average_of(policy, window), [copies(policy)]
    for step in range(steps):
        weights = moved(policy, step)
        history = [weights] if step in resets else [*history, weights]
        average.stepped(told(masked=0.2 if step in resets else 0.05))
    powers = [(window / (window + 2)) ** (len(history) - 1 - index) for index in range(len(history))]
    state = average.state()
    assert state["total"] == pytest.approx(sum(powers))
    for place, name in enumerate(name for name, _ in policy.named_parameters()):
        expected = sum(power * version[place] for power, version in zip(powers, history, strict=True)) / sum(
            powers
        )
        torch.testing.assert_close(state["weights"][name], expected)


def test_logprobs_are_those_of_the_average_and_the_policy_stays_as_it_is():
    policy, rows = make_policy(), make_rows()
    average, first = average_of(policy), make_policy()
    own = moved(policy, 1)
    for row, found in zip(rows, average.logprobs(rows), strict=True):
        ids = torch.from_numpy(row.ids[None]).long()
        with torch.no_grad():
            expected = token_logprobs(first(ids), ids)[0].numpy()
        np.testing.assert_allclose(found, np.where(row.mask, expected, 0), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(*pair) for pair in zip(copies(policy), own, strict=True))


def test_a_state_is_gone_on_from_exactly_and_without_one_it_begins_again():
    policy = make_policy()
    average, other = average_of(policy), average_of(make_policy())
    for seed in (1, 2):
        moved(policy, seed)
        average.stepped(told())
    other.load(average.state())
    assert other.state()["total"] == average.state()["total"]
    assert all(
        torch.equal(tensor, other.state()["weights"][name])
        for name, tensor in average.state()["weights"].items()
    )
    average.load(None)
    assert average.state()["total"] == 1.0
    assert torch.equal(average.state()["weights"]["norm"], policy.norm.detach())


@pytest.fixture
def config(tmp_path):
    return make_run(tmp_path / "run", save_model(tmp_path / "model"), max_staleness=2, update=UPDATE).config()


def some_steps(trained_policy):
    """Three steps, of which the second comes in parts and the third is taken again after a load."""
    metrics = [trained_policy.update(make_rows(1), ADVANTAGES)]
    trained_policy.begin()
    for row, advantage in zip(make_rows(2), ADVANTAGES, strict=True):
        trained_policy.add([row], [advantage])
    metrics.append(trained_policy.step())
    weights, _, randoms = trained_policy.state()
    kept = trained_policy.proximal_state()
    metrics.append(trained_policy.update(make_rows(3), ADVANTAGES))
    after = trained_policy.proximal_state()
    trained_policy.load(weights, None, randoms, kept)
    again = trained_policy.proximal_state()
    return metrics, kept, after, again


def test_two_processes_have_the_average_of_one(tmp_path, config):
    (metrics, kept, after, again), follower = together(tmp_path / "two", 2, as_leader, config, some_steps)
    alone = some_steps(TrainedPolicy(config))
    assert follower is None
    for found, known in zip(metrics, alone[0], strict=True):
        assert found.loss == pytest.approx(known.loss, rel=1e-4)
        assert found.clip_fraction == known.clip_fraction
    assert metrics[2].clip_fraction > 0
    assert kept["total"] == again["total"] == 1 + 0.5 + 0.25
    for name, tensor in kept["weights"].items():
        assert torch.equal(again["weights"][name], tensor)
        torch.testing.assert_close(tensor, alone[1]["weights"][name], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(after["weights"][name], alone[2]["weights"][name], rtol=1e-3, atol=1e-4)
