"""Runs that train adapters: exact resume, several processes, what engines get, and what cannot be gone on
from.
"""

import json
import shutil

import pytest
import torch

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.run_config.trainer import PROJECTIONS
from harnessgym.run_folder import write_json
from tests.trainers.recorded_run import STEPS, make_run, record_groups, save_model
from tests.trainers.started_again import after_stops
from tests.trainers.test_trained_policy import ADVANTAGES, as_leader
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers import checkpoint
from trainers.checkpoint import staged
from trainers.grpo import train
from trainers.learner import TrainerSettings
from trainers.policies.loading import load_policy
from trainers.policies.native_weights import save_policy
from trainers.trained_policy import TrainedPolicy
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path

pytestmark = pytest.mark.timeout(200)
LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


def lora_run(root, model, **options):
    run = make_run(root, model, **{"max_staleness": STEPS, "lora": LORA, "update": {"lr": 0.02}} | options)
    record_groups(run, range(2 * STEPS))
    return run


def after(run, stops):
    """Published weights and the optimizer's state when the trainer is started anew after each number of
    steps.
    """
    trained_policy = after_stops(run, stops)
    return trained_policy.policy.published(), trained_policy.optimizer.state_dict()["state"]


def changed(run, **trainer):
    config = json.loads(run.config_path.read_text())
    config["trainer"] |= trainer
    write_json(run.config_path, config)


@pytest.mark.parametrize(
    "options",
    [{}, {"publish": {"dtype": "bfloat16"}, "dtype": "bfloat16"}, {"algorithm": "ppo"},
     {"stream": True, "update": {"lr": 0.02, "proximal": "snapshot"}}],
    ids=["plain", "bfloat16", "ppo", "snapshot"],
)  # fmt: skip
def test_a_resumed_trainer_goes_on_exactly(tmp_path, model, options):
    straight, interrupted = (
        lora_run(tmp_path / name, model, **options) for name in ("straight", "interrupted")
    )
    (weights, moments), (again, its_moments) = after(straight, [STEPS]), after(interrupted, [1, 3, STEPS])
    start = load_policy(model).published()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert moments.keys() == its_moments.keys()
    for index, values in moments.items():
        assert all(torch.equal(its_moments[index][name], value) for name, value in values.items())
    moved = {name.split(".")[-2] for name, tensor in weights.items() if not torch.equal(tensor, start[name])}
    assert moved == set(LORA["targets"])
    for number in range(STEPS + 1):
        versions = [read_version(version_path(run.versions, number))[1] for run in (straight, interrupted)]
        assert all(torch.equal(versions[1][name], tensor) for name, tensor in versions[0].items())


def test_versions_are_ordinary_and_rounded_once_and_checkpoints_hold_no_weights(tmp_path, model):
    run = lora_run(tmp_path / "run", model, publish={"dtype": "bfloat16", "full_every": 100})
    weights, _ = after(run, [2])
    manifest, version = read_version(version_path(run.versions, 2))
    start = load_policy(model).published()
    assert manifest.kind == "delta"
    assert version.keys() == start.keys()
    assert all(torch.equal(version[name], tensor.bfloat16()) for name, tensor in weights.items())
    found = checkpoint.load_newest(run.checkpoints)
    assert found.weights == {}
    assert {name.split(".")[-4] for name in found.adapters["tensors"]} == set(LORA["targets"])


def test_a_version_lost_behind_its_checkpoint_is_merged_again_bit_by_bit(tmp_path, model):
    run = lora_run(tmp_path / "run", model)
    after(run, [2])
    path = version_path(run.versions, 2)
    before = read_version(path)
    shutil.rmtree(path)
    after(run, [2])
    again = read_version(path)
    assert again[0].tensors == before[0].tensors or again[0].kind != before[0].kind
    assert all(torch.equal(again[1][name], tensor) for name, tensor in before[1].items())


def test_a_version_that_was_published_stays_where_merging_rounds_otherwise(tmp_path, model):
    run = lora_run(tmp_path / "run", model)
    after(run, [2])
    before = read_version(version_path(run.versions, 2))
    found = checkpoint.load_newest(run.checkpoints)
    for name, tensor in found.adapters["tensors"].items():
        found.adapters["tensors"][name] = torch.nextafter(tensor, torch.full((), torch.inf))
    checkpoint.save(run.checkpoints, found)
    merged, _ = after(run, [2])
    assert any(not torch.equal(merged[name], tensor) for name, tensor in before[1].items())
    again = read_version(version_path(run.versions, 2))
    assert all(torch.equal(again[1][name], tensor) for name, tensor in before[1].items())
    after(run, [3])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora": LORA | {"rank": 8}}, "rank was 4 and is 8"),
        ({"lora": {}}, r"has adapters .* trainer\.lora is off"),
        ({"lora": LORA | {"targets": "all-linear"}}, "targets was"),
    ],
    ids=["rank", "off", "targets"],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, model, change, words):
    run = lora_run(tmp_path / "run", model)
    after(run, [1])
    changed(run, **change)
    with pytest.raises(TrainerError, match=words):
        after(run, [2])


def test_a_checkpoint_of_whole_weights_is_refused_and_so_are_versions_without_one(tmp_path, model):
    whole = make_run(tmp_path / "whole", model, max_staleness=STEPS)
    after(whole, [0])
    changed(whole, lora=LORA)
    run = lora_run(tmp_path / "run", model)
    after(run, [1])
    shutil.rmtree(run.checkpoints)
    for each in (whole, run):
        with pytest.raises(TrainerError, match="none to resume from"):
            after(each, [2])


def test_another_model_at_the_policys_path_is_refused(tmp_path, model):
    run = lora_run(tmp_path / "run", model)
    after(run, [1])
    other = load_policy(model)
    with torch.no_grad():
        other.norm.add_(0.01)
    save_policy(other, model)
    with pytest.raises(TrainerError, match="have other base weights"):
        after(run, [2])


def test_an_average_of_adapters_is_refused(tmp_path, model):
    update = {"lr": 0.02, "proximal": "ewma", "corrections": ["mis"]}
    config = make_run(tmp_path / "run", model, max_staleness=1, lora=LORA, update=update).config()
    with pytest.raises(ConfigError, match="averages of A and of B"):
        TrainedPolicy(config)


def steps_and_back(trained_policy):
    """A step, and its like again after the state of before was loaded."""
    trained_policy.update(make_rows(1), ADVANTAGES)
    weights, optimizer, randoms = trained_policy.state()
    saved, adapters = staged(optimizer), trained_policy.adapter_state()
    trained_policy.update(make_rows(2), ADVANTAGES)
    expected = trained_policy.state()[0]
    trained_policy.load(weights, saved, randoms, adapters=adapters)
    restored = trained_policy.state()[0]
    trained_policy.update(make_rows(2), ADVANTAGES)
    return weights, restored, expected, trained_policy.state()[0], adapters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_hold_and_step_adapters_as_one_process_does(tmp_path, model, dtype):
    config = make_run(tmp_path / "run", model, lora=LORA, dtype=dtype, update={"lr": 0.02}).config()
    found, follower = together(tmp_path / "two", 2, as_leader, config, steps_and_back)
    alone = steps_and_back(TrainedPolicy(config))
    assert follower is None
    weights, restored, expected, again, adapters = found
    assert all(torch.equal(restored[name], tensor) for name, tensor in weights.items())
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())
    assert adapters["tensors"].keys() == alone[4]["tensors"].keys()
    assert adapters["base"] == alone[4]["base"]
    start = load_policy(model).published()
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == "float32" else {"atol": 0.02}
    for name, tensor in alone[3].items():
        assert torch.allclose(again[name], tensor, **tolerance)
        assert torch.equal(tensor, start[name]) == (name.split(".")[-2] not in LORA["targets"])
        assert torch.equal(again[name], start[name]) == torch.equal(tensor, start[name])


def test_a_run_that_changes_its_number_of_processes_goes_on(tmp_path, model):
    runs = [
        lora_run(tmp_path / name, model, update={"lr": 0.01, "max_grad_norm": 1e9})
        for name in ("one", "changing")
    ]
    for run, stops in zip(runs, ([(1, 3)], [(1, 1), (2, 2), (1, 3)]), strict=True):
        for processes, steps in stops:
            changed(run, processes=processes, steps=steps)
            train(TrainerSettings(run=run.root))
    ours, theirs = (read_version(version_path(run.versions, 3))[1] for run in runs)
    start = read_version(version_path(runs[0].versions, 0))[1]
    assert all(torch.allclose(theirs[name], tensor, rtol=1e-3, atol=1e-4) for name, tensor in ours.items())
    assert any(not torch.equal(tensor, start[name]) for name, tensor in ours.items())


def test_all_linear_layers_of_the_model_can_be_trained(tmp_path, model):
    run = lora_run(tmp_path / "run", model, lora={"rank": 2})
    weights, _ = after(run, [2])
    start = load_policy(model).published()
    assert {name.split(".")[-2] for name in weights if not torch.equal(weights[name], start[name])} == set(
        PROJECTIONS
    )
