"""A whole run of a family that the native policy does not compute: mini-swe-agent, vLLM, our trainer. Run with
HARNESSGYM_REQUIRE=vllm,agents,bubblewrap.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from harnessgym.supervisor.progress import read_metrics
from tests.harnessgym.rollout.tiny import HERE as TINY
from tests.support import vllm_cpu
from tests.test_bad_input_runs import Run
from tests.trainers.policies.families import SERVED, tiny_model
from trainers.policies.transformers import load_transformers
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "vllm" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
        reason="starts a vLLM of its own, which takes minutes: HARNESSGYM_REQUIRE=vllm runs it",
    ),
]
SHIPPED = Path("environments/lookup/policy")
MINI = """
agent:
  agent_class: default
  system_template: Answer with one bash command.
  instance_template: "{{task}}"
  step_limit: 1
  max_consecutive_format_errors: 1
model:
  model_class: litellm_textbased
  action_regex: '([^\\n]+)'
  cost_tracking: ignore_errors
environment:
  timeout: 10
"""


@pytest.fixture
def model(tmp_path):
    """Qwen2 with biases, which the native policy does not compute, and the shipped tokenizer and template."""
    folder = tmp_path / "model"
    made = tiny_model("qwen2", **SERVED["qwen2"], vocab_size=510, max_position_embeddings=1024)
    made.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SHIPPED / name, folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"eos_token_id": 2}))
    return folder


def test_a_run_of_a_family_that_only_transformers_computes(model, tmp_path):
    """η = 0: the trainer's log-probabilities of a batch are vLLM's, so ratios are 1 before each step."""
    harness = {"name": "mini", "type": "mini_swe_agent", "settings": {"prewarm": True, "config": MINI}}
    with vllm_cpu.serving(tmp_path / "vllm.log", model, 1024) as server:
        run = Run(
            tmp_path,
            policy={"path": str(model)},
            tasks={"set": f"{TINY}:ByChance"},
            harnesses=[harness],
            sandbox={"backend": "bubblewrap", "fallback": ""},
            sampling={"max_tokens": 12},
            engine={"workers": 0, "outside": [{"kind": "vllm", "url": server.address}], "max_length": 1024},
            trainer={
                "steps": 3, "groups_per_step": 1, "group_size": 8, "max_staleness": 0, "update": {"lr": 1e-3},
            },
        )  # fmt: skip
        said = run.end(timeout_s=600)
    assert "done: 3/3 steps" in said
    run.assert_verified()
    metrics = [line for line in read_metrics(run.paths()) if "mean_ratio" in line]
    assert metrics  # a group whose rewards are all equal, one in 128, is not trained
    assert all(abs(line["mean_ratio"] - 1) < 1e-3 for line in metrics)
    assert all(line["grad_norm"] > 0 for line in metrics)
    policy = load_transformers(model)
    start = policy.published()
    for version in (0, 3):
        _, weights = read_version(version_path(run.paths().versions, version))
        policy.load(weights)
        assert (version == 0) == all((weights[name] == tensor).all() for name, tensor in start.items())
