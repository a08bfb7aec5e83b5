"""The experts that a real vLLM chose, replayed. Run with HARNESSGYM_REQUIRE=vllm."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from harnessgym.routed_experts import RowExperts
from tests.support import vllm_cpu
from tests.trainers.policies.families import SERVED, tiny_model
from tests.trainers.policies.test_routing_replay import own_experts
from trainers.policies.transformers import load_transformers

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        "vllm" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
        reason="runs vLLM in an environment of its own: HARNESSGYM_REQUIRE=vllm runs it",
    ),
]
PROGRAM = Path(vllm_cpu.__file__).with_name("vllm_routing.py")


def sampled(folder, dtype, prompts):
    """The rows of a vLLM in `dtype`, the logprobs of their last 12 tokens, and its experts."""
    np.save(folder / "prompts.npy", prompts)
    arguments = [folder, dtype, folder / "prompts.npy", folder / f"{dtype}.npz", "12"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [vllm_cpu.VENV / "bin/python", PROGRAM, *arguments], check=True, timeout=300, env=environment
    )
    with np.load(folder / f"{dtype}.npz") as out:
        routing = [
            RowExperts(np.pad(experts, ((0, 1), (0, 0), (0, 0))).astype(np.uint8), np.arange(experts.shape[0] + 1) < experts.shape[0])
            for experts in out["experts"]
        ]  # fmt: skip
        return list(out["ids"].astype(np.int32)), torch.from_numpy(out["logprobs"].flatten()), routing


def test_its_experts_belong_to_their_tokens_and_bring_its_logprobs_closer(tmp_path):
    """In float32 they are the policy's own, so each is at the token that it was chosen for. In bfloat16 some
    are not, and with them the policy is closer to what vLLM computed.
    """
    vllm_cpu.prepare()
    tiny_model("qwen3_moe", **SERVED["qwen3_moe"], num_experts=16, num_hidden_layers=4).save_pretrained(
        tmp_path
    )
    policy = load_transformers(tmp_path)
    prompts = np.random.default_rng(0).integers(3, 97, (8, 40))
    rows, exact, routing = sampled(tmp_path, "float32", prompts)
    masks = [(np.arange(len(row)) >= prompts.shape[1]).astype(np.int32) for row in rows]
    for row, routed in zip(rows, routing, strict=True):
        own = own_experts(policy, row).experts[:-1]
        assert (np.sort(own) == np.sort(routed.experts[:-1])).mean() > 0.999
    with torch.no_grad():
        assert torch.allclose(policy.logprobs(rows, masks, 1.0, routing).double(), exact, atol=1e-4)
        rows, rounded, routing = sampled(tmp_path, "bfloat16", prompts)
        far, near = (
            (policy.logprobs(rows, masks, 1.0, given).double() - rounded).abs().mean()
            for given in (None, routing)
        )
    assert near < far
