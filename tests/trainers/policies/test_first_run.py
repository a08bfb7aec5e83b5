"""A run file that is made of a model, tasks and a harness is one that runs, or an error says why not."""

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harnessgym.cli.first_run import written
from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig
from tests.trainers.policies.families import tiny_model
from trainers.policies import first_run as module
from trainers.policies.first_run import FirstRun
from trainers.policies.model_folder import facts_of

SHIPPED = "environments/lookup/policy"
URL = "http://127.0.0.1:8000"


def config_of(run):
    name, text = run.run_file()
    config = validate(RunConfig, tomllib.loads(text), "test")
    assert config.name == name
    return config


def test_a_small_native_model_is_served_by_the_run_itself():
    config = config_of(FirstRun(SHIPPED, "lookup", "python examples/lookup_openai.py"))
    assert (config.name, config.engine.workers) == ("policy-lookup", 2)
    assert config.harnesses[0].type == "command"
    assert config.harnesses[0].settings["argv"] == ["python", "examples/lookup_openai.py"]
    assert config.trainer.update["lr"] == 4e-4


@pytest.mark.parametrize("engine", ["", "embedded"])
def test_any_other_model_is_served_by_the_run_too_which_is_slower(engine, tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path / "my model")
    run = FirstRun(str(tmp_path / "my model"), "swe", "codex", engine=engine)
    config = config_of(run)
    assert (config.name, config.policy.path) == ("my-model-swe", run.model)
    assert (config.engine.workers, config.engine.outside) == (2, ())
    assert "slower" in run.run_file()[1]
    assert "slower" not in FirstRun(SHIPPED, "swe", "codex", engine=engine).run_file()[1]


def test_vllm_serves_any_model(tmp_path):
    tiny_model("qwen2").save_pretrained(tmp_path)
    run = FirstRun(str(tmp_path), "swe", "codex", engine=URL)
    config = config_of(run)
    assert config.engine.workers == 0
    assert config.engine.outside[0].url == URL
    assert config.harnesses[0].type == "codex"
    assert "slower" not in run.run_file()[1]


def test_an_engine_is_an_address_or_embedded():
    with pytest.raises(ConfigError, match="'vllm' is neither 'embedded' nor the URL"):
        FirstRun(SHIPPED, "swe", "codex", engine="vllm").run_file()


def of_size(monkeypatch, parameters):
    facts = dataclasses.replace(facts_of(Path(SHIPPED)), parameters=parameters, dtype="BF16", context=40_960)
    monkeypatch.setattr(module, "facts_of", lambda _: facts)


@pytest.mark.parametrize(
    ("parameters", "gpus", "adapters"),
    [(600_000_000, 1, False), (4_000_000_000, 1, True), (4_000_000_000, 8, False), (30_000_000_000, 8, True)],
)
def test_adapters_are_trained_where_whole_weights_do_not_fit(monkeypatch, parameters, gpus, adapters):
    of_size(monkeypatch, parameters)
    trainer = config_of(FirstRun(SHIPPED, "swe", "codex", gpus=gpus, engine=URL)).trainer
    assert trainer.lora.on == adapters
    assert (trainer.device, trainer.processes, trainer.dtype) == ("cuda", gpus, "bfloat16")
    assert trainer.gradient_checkpointing
    assert trainer.publish.dtype == "bfloat16"
    assert trainer.update["lr"] == (2e-5 if adapters else 1e-6)


def test_a_harness_may_be_a_class():
    harness = config_of(FirstRun(SHIPPED, "lookup", "harnessgym.harnesses.codex:CodexHarness")).harnesses[0]
    assert (harness.name, harness.type) == ("CodexHarness", "harnessgym.harnesses.codex:CodexHarness")


def test_a_folder_s_name_may_have_dots(tmp_path):
    path = written(SHIPPED, "lookup", "codex", 0, "", tmp_path / "Qwen3.5-4B")
    assert path == tmp_path / "Qwen3.5-4B.toml"


@pytest.mark.parametrize("model", ["nowhere", "environments/lookup", "Some/Model"])
def test_a_model_that_is_not_in_reach_is_one_error(model, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"^--model: "):
        FirstRun(model, "swe", "codex").run_file()


def test_a_harness_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="mini_swe_agent"):
        FirstRun(SHIPPED, "swe", " ").run_file()


def test_one_command_makes_the_file_and_runs_it(tmp_path):
    command = [
        "train", "--model", SHIPPED, "--tasks", "lookup", "--harness", "python examples/lookup_openai.py",
        "--folder", str(tmp_path / "run"), "--trainer.steps", "1", "--trainer.groups_per_step", "1",
        "--evaluation.tasks", "0", "--sandbox.backend", "process",
    ]  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-m", "harnessgym", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert (tmp_path / "run.toml").read_text() in said
    assert "done: 1/1 steps" in said
    assert validate(RunConfig, tomllib.loads((tmp_path / "run.toml").read_text()), "test").trainer.steps == 24
    (tmp_path / "run.toml").write_text("changed = true\n")
    other = subprocess.run(
        [sys.executable, "-m", "harnessgym", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert other.returncode == 2
    assert "is another file" in other.stderr


def test_init_asks_for_what_is_not_given(tmp_path):
    answers = f"{SHIPPED}\nlookup\npython examples/lookup_openai.py\n"
    file = tmp_path / "run.toml"
    command = [sys.executable, "-m", "harnessgym", "init", str(file)]
    done = subprocess.run(command, input=answers, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert file.read_text() in done.stdout
    again = subprocess.run(command, input=answers, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
