"""A whole run of a family that the native policy does not compute, on the run's own engine."""

import json
import shutil
from pathlib import Path

import pytest

from harnessgym.supervisor.progress import read_metrics
from tests.harnessgym.rollout.tiny import HERE as TINY
from tests.test_bad_input_runs import Run
from tests.trainers.policies.families import tiny_model
from trainers.policies.transformers import load_transformers
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path

pytestmark = pytest.mark.timeout(180)
SHIPPED = Path("environments/lookup/policy")


@pytest.fixture
def model(tmp_path):
    """Qwen2 with biases, which the native policy does not compute, and the shipped tokenizer and template."""
    folder = tmp_path / "model"
    tiny_model("qwen2", vocab_size=510, max_position_embeddings=256).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SHIPPED / name, folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"eos_token_id": 2}))
    return folder


def test_a_run_of_a_family_that_only_transformers_computes(model, tmp_path):
    """η = 0: the trainer's log-probabilities of a batch are the engine's, so ratios are 1 before each step."""
    run = Run(
        tmp_path,
        "good",
        policy={"path": str(model)},
        tasks={"set": f"{TINY}:ByChance"},
        trainer={"steps": 2, "groups_per_step": 1, "group_size": 8, "max_staleness": 0, "update": {"lr": 1e-3}},
    )  # fmt: skip
    said = run.end()
    assert "done: 2/2 steps" in said
    assert "serve it through transformers' cache, which is slower" in said
    log = (run.folder / "logs/engine-0.log").read_text()
    assert log.count("served through transformers' cache, which is slower than our own module") == 1
    run.assert_verified()
    metrics = [line for line in read_metrics(run.paths()) if "mean_ratio" in line]
    assert metrics  # a group whose rewards are all equal, one in 128, is not trained
    assert all(abs(line["mean_ratio"] - 1) < 1e-3 for line in metrics)
    start = load_transformers(model).published()
    for version in (0, 2):
        _, weights = read_version(version_path(run.paths().versions, version))
        assert (version == 0) == all((weights[name] == tensor).all() for name, tensor in start.items())
