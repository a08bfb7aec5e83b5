"""A folder that a run cannot begin with is refused before anything starts, with what to do."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.run_config.run import PolicySection
from tests.trainers.policies.families import tiny_model
from trainers.policies.model_folder import check_model, facts_of

SHIPPED = Path("environments/lookup/policy")


def checked(folder, *, implementation="auto", embedded=True):
    policy = PolicySection(path=str(folder), implementation=implementation)
    return check_model(policy, "policy.", embedded=embedded)


@pytest.fixture
def folder(tmp_path):
    """A model that only transformers computes, with a tokenizer and a template."""
    tiny_model("qwen2").save_pretrained(tmp_path / "model")
    for file in SHIPPED.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(file, tmp_path / "model")
    return tmp_path / "model"


def test_the_shipped_policy_and_a_served_one_are_accepted(folder):
    assert checked(SHIPPED) == checked(SHIPPED, implementation="transformers") == ""
    assert checked(folder, embedded=False) == ""


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer.json"),
        ("chat_template.jinja", "no chat template"),
    ],
)
def test_a_missing_file_is_named(file, says, folder):
    (folder / file).unlink()
    if file == "chat_template.jinja":
        (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"policy\.path.*{says}"):
        checked(folder, embedded=False)


def test_weights_that_a_folder_holds_twice_count_once(folder):
    before = facts_of(folder).parameters
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert facts_of(folder).parameters == before
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    assert facts_of(folder).parameters == 2 * before
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}))
    assert facts_of(folder).parameters == before
    index.write_text("{")
    with pytest.raises(PolicyError, match="index"):
        facts_of(folder)


def test_a_template_in_the_tokenizer_s_configuration_counts(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    checked(folder, embedded=False)


def test_own_engines_serve_every_model_and_a_slower_one_is_told(folder):
    assert "transformers' cache, which is slower" in checked(folder)
    with pytest.raises(ConfigError, match='implementation = "native"'):
        checked(folder, implementation="native", embedded=False)


def test_damaged_json_is_an_error_of_the_setting(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"policy\.path: .*cannot be read"):
        checked(folder)


def test_checking_imports_neither_torch_nor_transformers():
    program = (
        "import sys, trainers.policies.model_folder; "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
