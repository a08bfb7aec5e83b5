"""What the files of examples/recipes say: each is a run file, and the memory and disk that it names are our own estimate
for the real model, on the hardware that it names.
"""

import json
import math
import re
import struct
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from harnessgym.config import load_config
from harnessgym.run_config.run import RunConfig
from trainers.policies.capacity import disk_need, main_memory_need, trainer_need
from trainers.policies.model_folder import facts_of
from trainers.ppo_settings import ppo_settings_of
from trainers.update_settings import settings_of

RECIPES = Path(__file__).parents[2] / "examples/recipes"
RUN_FILES = {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}
GPU = 80e9
VLLM_SHARE = 0.9
"""What vLLM takes of a GPU if it is not told (`--gpu-memory-utilization`)."""
_QWEN3 = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "head_dim": 128}
MODELS = {
    # config.json of the model on the hub; also in slime's scripts/models/qwen3-4B.sh
    "Qwen3-4B": ("qwen3", _QWEN3 | {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": True,
    }, 4.02e9),
    # config.json of the model on the hub
    "Qwen3-1.7B": ("qwen3", _QWEN3 | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "tie_word_embeddings": True,
    }, 1.72e9),
    # config.json of the model on the hub
    "Qwen3-30B-A3B": ("qwen3_moe", _QWEN3 | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "tie_word_embeddings": False,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    }, 30.5e9),
    # https://docs.vultr.com/models/alibaba-qwen-35/qwen3.5-4b/nvidia and https://apxml.com/models/qwen35-4b
    "Qwen3.5-4B": ("qwen3_5", {
        "text_config": {
            "vocab_size": 248_320, "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262_144,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "tie_word_embeddings": True,
        },
        "vision_config": {
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2560,
        },
        "tie_word_embeddings": True,
    }, 4.5e9),
}  # fmt: skip
"""The real models: kind, published configuration, published number of weights."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What `facts_of` reads in the folders of the real models: their weights are described, and take no space."""

    def write(name):
        kind, options, published = MODELS[name]
        folder = tmp_path_factory.mktemp("model")
        config = AutoConfig.for_model(kind, **options)
        with torch.device("meta"):
            model = (AutoModelForImageTextToText if kind == "qwen3_5" else AutoModelForCausalLM).from_config(
                config
            )
        model.tie_weights()
        config.save_pretrained(folder)
        _describe(folder / "model.safetensors", dict(model.named_parameters()))
        found = facts_of(folder)
        assert found.parameters == pytest.approx(published, rel=0.01)
        return found

    return {name: write(name) for name in MODELS}


def _describe(path, tensors):
    """A safetensors file of bfloat16 weights that is all hole behind its header."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = 2 * math.prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def head_of(path):
    """The comment at the beginning of a recipe, without its marks."""
    lines = path.read_text().split("\n\n")[0].splitlines()
    return "\n".join(line.removeprefix("#") for line in lines if line.startswith("#"))


@pytest.mark.parametrize("name", RUN_FILES)
def test_the_memory_that_a_recipe_names_is_our_estimate_and_fits(name, facts):
    config = load_config(RunConfig, RUN_FILES[name])
    found = facts[Path(config.policy.path).name]
    head, processes = head_of(RUN_FILES[name]), config.trainer.processes
    trainer = trainer_need(config, found).total / processes
    assert f"at least {trainer / 1e9:.1f} GB of" in head
    assert f"main memory: at least {main_memory_need(config, found).total / 1e9:.1f} GB" in head
    assert f"disk: at least {disk_need(config, found).total / 1e9:.1f} GB" in head
    engines = len(config.engine.outside)
    gpus = {"one GPU": 1, "two GPUs": 2, "eight GPUs": 8}[
        re.search(r"(one GPU|two GPUs|eight GPUs)\W+of 80 GB", head.replace("\n", " "))[1]
    ]
    share = re.search(r"--gpu-memory-utilization (\S+)", head)
    engine = float(share[1] if share else VLLM_SHARE) * GPU
    assert engine > 2 * found.parameters * 1.1  # bfloat16 weights, and a cache beside them
    if gpus == 1:
        assert trainer + engine < 0.8 * GPU
    else:
        assert processes + engines == gpus
        assert trainer < 0.5 * GPU


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_recipe_is_a_run_file_whose_engines_are_those_of_its_head(name):
    config = load_config(RunConfig, RUN_FILES[name])
    settings_of(config)
    if config.trainer.algorithm == "ppo":
        ppo_settings_of(config)
    head = head_of(RUN_FILES[name])
    assert f"harnessgym train examples/recipes/{name}.toml" in head
    assert f"harnessgym install {config.harnesses[0].type}" in head
    assert f"--max-model-len {config.engine.max_length} " in head
    assert f"vllm serve {config.policy.path} " in head
    devices = re.findall(r"for gpu in ([\d ]+);|CUDA_VISIBLE_DEVICES=(\d)", head)
    ports = [port for several, one in devices for port in (several or one).split()] or ["0"]
    assert [engine.url for engine in config.engine.outside] == [
        f"http://127.0.0.1:800{port}" for port in ports
    ]
    assert not set(map(int, ports)) & set(range(config.trainer.processes)) or len(ports) == 1
    assert ("lora" in head.partition("Engine")[0]) == config.trainer.lora.on


@pytest.mark.parametrize(("name", "each"), [("qwen3_1_7b_dpo", 20), ("qwen3_1_7b_from_teacher", 16)])
def test_what_trl_needs_for_each_weight(name, each, facts):
    """Float32 weights, gradients and two moments, and DPO's reference model beside them."""
    need = each * facts["Qwen3-1.7B"].parameters
    assert f"TRL: {need / 1e9:.1f} GB for weights, gradients" in head_of(RECIPES / f"{name}.sh").replace(
        "\n", " "
    )
    assert need < 0.5 * GPU


@pytest.mark.parametrize(
    "path", sorted({*RECIPES.glob("*.toml"), *RECIPES.glob("*.sh")}), ids=lambda path: path.name
)
def test_the_readme_has_the_figures_of_each_recipe(path):
    page = (RECIPES / "README.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| [{path.name}]({path.name}) |")]
    figures = re.findall(r"(?:at least|TRL:) ([\d.]+) GB", head_of(path))
    assert figures
    assert all(f"{figure} GB" in row for figure in figures)
