"""Models that are trained for the benchmark, and real AdamW steps on them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainers.optimizer import make_optimizer
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policy import token_logprobs
from trainers.update_settings import UpdateSettings

_SMOL = Path.home() / ".cache/harnessgym/smollm2-135m"
_SHIPPED = Path("environments/lookup/policy")
_TEXT = Path("README.md")
_WINDOW = 32
"""Tokens of a row."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to train: its folder, or a shape that is initialised at random."""

    name: str
    folder: Path
    shape: NativeConfig | None = None

    def load(self) -> NativePolicy:
        """The model in float32, as it is trained."""
        if self.shape is None:
            return load_policy(self.folder)
        torch.manual_seed(0)
        return NativePolicy(self.shape)


def models(*, quick: bool) -> list[Model]:
    """The shipped policy and, unless quick, two larger ones: 19M at random, and SmolLM2-135M.

    Weights of SmolLM2 are the published ones where they are, else of its shape at random.
    """
    small = Model("lookup policy, trained", _SHIPPED)
    if quick:
        return [small]
    middle = Model("19M, random", _SHIPPED, NativeConfig(49152, 256, 768, 8, 4, 2, 64, qk_norm=False))
    if (_SMOL / "model.safetensors").is_file():
        return [Model("SmolLM2-135M, pretrained", _SMOL), middle, small]
    shape = NativeConfig(
        49152, 576, 1536, 30, 9, 3, 64, rope_theta=100_000.0, rms_norm_eps=1e-5, qk_norm=False
    )
    return [Model("135M of SmolLM2's shape, random", _SHIPPED, shape), middle, small]


def steps(model: Model, lr: float, count: int) -> Iterator[dict[str, Tensor]]:
    """Published bfloat16 weights before training and after each AdamW step (the trainers' optimizer, float32
    masters).

    The loss is a policy gradient: -A log pi over windows of the README, with an advantage of +1 or -1 per
    row.
    """
    policy = model.load()
    optimizer = make_optimizer(policy, UpdateSettings(lr=lr))
    ids = torch.tensor(
        Tokenizer.from_file(str(model.folder / "tokenizer.json")).encode(_TEXT.read_text()).ids
    )
    draw = torch.Generator().manual_seed(1)
    yield _rounded(policy)
    for _ in range(count):
        starts = torch.randint(0, len(ids) - _WINDOW, (2,), generator=draw)
        batch_BT = (
            torch.stack([ids[start : start + _WINDOW] for start in starts.tolist()])
            % policy.config.vocab_size
        )
        advantage_B1 = torch.tensor([[1.0], [-1.0]])
        optimizer.zero_grad(set_to_none=True)
        loss = -(advantage_B1 * token_logprobs(policy(batch_BT), batch_BT)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        yield _rounded(policy)


def _rounded(policy: NativePolicy) -> dict[str, Tensor]:
    return {name: tensor.bfloat16() for name, tensor in policy.published().items()}
