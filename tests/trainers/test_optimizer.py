"""AdamW with moments of eight bits: nearly the steps of plain AdamW, and resumed to the bit."""

import pytest
import torch

from harnessgym.errors import ConfigError
from tests.trainers.recorded_run import STEPS, make_run, record_groups
from tests.trainers.started_again import after_stops
from trainers.optimizer import make_optimizer
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.update_settings import UpdateSettings, settings_of


@pytest.fixture
def model(tmp_path):
    """A policy with matrices of more than 4,096 weights, whose moments have eight bits."""
    torch.manual_seed(0)
    config = NativeConfig(96, 64, 96, 1, 2, 1, 32, max_position_embeddings=64)
    save_policy(NativePolicy(config), tmp_path / "model")
    return tmp_path / "model"


def stepped(optimizer_name, steps=5):
    """Weights after steps towards zero, and the optimizer."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(128, 64)
    optimizer = make_optimizer(layer, UpdateSettings(optimizer=optimizer_name, lr=0.01))
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(16, 128)).square().mean().backward()
        optimizer.step()
    return layer.weight.detach(), optimizer


def test_its_steps_are_nearly_those_of_plain_adamw():
    (plain, _), (eight, optimizer) = stepped("adamw"), stepped("adamw_8bit")
    start = stepped("adamw", 0)[0]
    assert (eight - plain).norm() < 0.1 * (plain - start).norm()
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_resumes_to_the_bit(tmp_path, model, algorithm):
    found = []
    for name, stops in (("straight", (4,)), ("stopped", (1, 3, 4))):
        update = {"lr": 0.01, "optimizer": "adamw_8bit"}
        folder = make_run(tmp_path / name, model, algorithm=algorithm, max_staleness=2 * STEPS, update=update)
        record_groups(folder, range(2 * STEPS))
        found.append(after_stops(folder, stops).policy.published())
    start = load_policy(model).published()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert any(not torch.equal(tensor, start[name]) for name, tensor in found[0].items())


def test_several_processes_are_refused(tmp_path, model):
    folder = make_run(tmp_path / "run", model, processes=2, update={"optimizer": "adamw_8bit"})
    with pytest.raises(ConfigError, match="does not know shards"):
        settings_of(folder.config())
