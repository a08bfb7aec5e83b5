"""The run files of examples/recipes, each run for a step with a tiny random model of the same architecture. Harnesses,
SWE tasks, sandbox and graders are the real ones; what else differs from the file is in the tables below.

    HARNESSGYM_REQUIRE=bubblewrap,agents,vllm pytest tests/examples/test_recipe_runs.py
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

from harnessgym.config import load_config
from harnessgym.harnesses.installation import installed
from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, listing
from harnessgym.supervisor.progress import read_metrics
from tests.proxies.npm_tokenizer import qwen3_folder
from tests.support import vllm_cpu
from tests.support.command import run_here
from tests.support.tiny_folders import tiny_folder
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path

pytestmark = [pytest.mark.bubblewrap, pytest.mark.agents, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples/recipes"
REQUIRED = os.environ.get("HARNESSGYM_REQUIRE", "").split(",")


class Model(NamedTuple):
    """A tiny model: its family, one of TRL's published chat templates, and whether vLLM serves it."""

    family: str
    template: str
    vllm: bool = False


MODELS = {
    "qwen3_4b_codex_lora": Model("qwen3", "qwen3.jinja"),
    "qwen3_4b_codex": Model("qwen3", "qwen3.jinja"),
    "qwen3_4b_ppo": Model("qwen3", "qwen3.jinja"),
    "qwen3_5_4b_claude_code": Model("qwen3_5", "qwen3_5_think.jinja"),
    "qwen3_30b_a3b_mini_swe_agent": Model("qwen3_moe", "qwen3_instruct_2507.jinja", vllm=True),
}
SMALL = {
    "trainer.steps": 1,
    "trainer.groups_per_step": 1,
    "trainer.group_size": 2,
    "sampling.max_tokens": 12,
    "evaluation.tasks": 0,
}
"""Sizes."""
MACHINE = {"trainer.device": "cpu", "engine.workers": 1, "engine.outside": []}
"""One machine without a GPU: the run's own engine."""
SIGNAL = {
    "rewards": [
        {
            "type": "sql",
            "weight": 1.0,
            "settings": {
                "query": "SELECT slot FROM rollouts WHERE id = :rollout_id",
                "channel": "turn",
            },
        }
    ]
}
"""A random model solves nothing, so the second rollout of a group gets a reward for nothing."""
OWN = {
    "qwen3_4b_codex": {"trainer.processes": 2},
    "qwen3_4b_ppo": {"trainer.processes": 2, "trainer.ppo.critic.warmup": 0},
    "qwen3_30b_a3b_mini_swe_agent": {"trainer.processes": 2},
}
"""Of four GPUs two processes are left."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes the folder of a tiny model, once."""
    qwen3_folder()
    made = {}

    def make(model):
        if model not in made:
            path = tmp_path_factory.mktemp("models") / model.family
            made[model] = tiny_folder(path, model.family, model.template, served=model.vllm)
        return made[model]

    return make


def skip_without_agent(name):
    """Skips a test whose agent is not installed, unless agents are required."""
    made = load("harness", name)
    settings = made.settings()
    if "agents" not in REQUIRED and not installed(made(settings).install(), Path(settings.folder)):
        pytest.skip(f"{name} is not installed: harnessgym install {name}")


@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_makes_a_step(name, folder, tmp_path):
    path, model = RECIPES / f"{name}.toml", MODELS[name]
    config = load_config(RunConfig, path)
    skip_without_agent(config.harnesses[0].type)
    if model.vllm and "vllm" not in REQUIRED:
        pytest.skip("starts a vLLM of its own, which takes a minute: HARNESSGYM_REQUIRE=vllm runs it")
    weights = folder(model)
    length = config.engine.max_length
    serving = vllm_cpu.serving(tmp_path / "vllm.log", weights, length) if model.vllm else nullcontext()
    with serving as server:
        changed = {"policy.path": str(weights), **SMALL, **MACHINE, **SIGNAL, **OWN.get(name, {})}
        if server is not None:
            changed |= {"engine.workers": 0, "engine.outside": [{"kind": "vllm", "url": server.address}]}
        train(path, tmp_path / "run", changed)
    check(RunFolder(tmp_path / "run"), config.harnesses[0].name)


def train(path, folder, changed):
    """Run a recipe with these changes to its end."""
    words = [word for key, value in changed.items() for word in (f"--{key}", written(value))]
    argv = [sys.executable, "-m", "harnessgym", "train", str(path), "--folder", str(folder), *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: 1/1 steps" in done.stdout


def written(value):
    """A value as TOML, which overrides are written in."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {written(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


def check(run, harness):
    """The rollouts of the step are graded and verified, every token is accounted for, and there was a gradient."""
    assert run_here(["traces", "verify", run.root]).returncode == 0
    with TraceStore.open(run.store_url()) as store:
        rollouts = store.read(
            lambda conn: listing.newest_rollouts(conn, -1, listing.RolloutFilter(status="finished"))
        )
    assert len(rollouts) >= 2
    assert {(rollout.harness, rollout.verdict) for rollout in rollouts} == {(harness, "valid")}
    summary = json.loads(run.summary_path.read_text())
    assert summary["tokens_sampled"] == summary["tokens_trained"] + summary["tokens_excluded"] > 0
    (step,) = [line for line in read_metrics(run) if "grad_norm" in line]
    assert step["grad_norm"] > 0
    before, after = (read_version(version_path(run.versions, version))[1] for version in (0, 1))
    assert any((before[name] != tensor).any() for name, tensor in after.items())
