"""The rows that are trained on, and the model."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.policy import token_logprobs

_SMOL = Path.home() / ".cache/harnessgym/smollm2-135m"
_SHIPPED = Path("environments/lookup/policy")
_TEXTS = ("README.md", "docs/concepts.md", "docs/running.md", "docs/tasks.md", "docs/traces.md")
ROLLOUTS = 8
CASES = ("shared", "equal", "mixed")


def _plan(case: str, draw: np.random.Generator) -> list[tuple[int, int, int]]:
    """For each rollout, which prompt it has, and how many tokens its prompt and its answer have."""
    if case != "mixed":
        return [(0 if case == "shared" else number, 512, 64) for number in range(ROLLOUTS)]
    prompts = np.clip(draw.lognormal(np.log(256), 0.6, ROLLOUTS), 32, 1024).astype(int)
    answers = np.clip(draw.lognormal(np.log(64), 0.8, ROLLOUTS), 8, 384).astype(int)
    return [
        (number, int(prompt), int(answer))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def model_folder(root: Path) -> Path:
    """SmolLM2-135M-Instruct, or one of its shape with 6 of its 30 layers at random, which is made at
    `root`.
    """
    if (_SMOL / "model.safetensors").is_file():
        return _SMOL
    folder = root / "random-model"
    if not (folder / "model.safetensors").is_file():
        torch.manual_seed(0)
        save_policy(NativePolicy(NativeConfig(49152, 576, 1536, 6, 9, 3, 64, rope_theta=100_000.0, rms_norm_eps=1e-5, qk_norm=False)),
                    folder)  # fmt: skip
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (_SHIPPED / name).is_file():
                (folder / name).write_bytes((_SHIPPED / name).read_bytes())
    return folder


def rows(case: str, seed: int, folder: Path) -> tuple[list[Row], FloatArray]:
    """Rows of real text with the logprobs that the model itself gives, and their rewards, float64 [8]."""
    draw = np.random.default_rng([seed, 17])
    ids = np.array(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(_text()).ids, dtype=np.int32)
    plan = _plan(case, draw)
    starts = draw.integers(0, len(ids) - 2048, size=2 * ROLLOUTS)
    policy = load_policy(folder)
    found = []
    for number, (prompt, length, answer) in enumerate(plan):
        text = np.concatenate([ids[starts[prompt] :][:length], ids[starts[ROLLOUTS + number] :][:answer]])
        found.append(_row(policy, number, text, length))
    rewards = np.arange(ROLLOUTS, dtype=np.float32) % 3
    return found, rewards


def text_digest() -> str:
    """Of the text that rows are cut from: with other text they are other rows."""
    return hashlib.sha256(_text().encode()).hexdigest()[:12]


def _text() -> str:
    return "\n".join(Path(name).read_text() for name in _TEXTS)


@torch.no_grad()
def _row(policy: NativePolicy, number: int, ids: IdArray, prompt: int) -> Row:
    tensor = torch.from_numpy(ids[None]).long()
    mask = (np.arange(len(ids)) >= prompt).astype(np.int32)
    logprobs = token_logprobs(policy(tensor), tensor)[0].numpy() * mask
    return Row(
        f"rollout-{number}",
        "group",
        ids,
        mask,
        logprobs.astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32),
    )
