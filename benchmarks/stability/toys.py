"""Toys: tasks small enough for hundreds of runs, for the trainers' own policy without any layer.

Such a policy is a table: the next token depends on the last one alone. So expected rewards are computed, not
sampled. A prompt is one token, and a rollout `length` sampled ones.

bandit: the prompt is a context, the one sampled token an arm, and the reward 1 with the arm's probability in
that context. One arm of each context succeeds in 0.9 of cases, the others in 0 to 0.6. chain: each token has
one right successor; the reward is the share of tokens before the first wrong one. So what a token earns hangs
on those before it, and a rollout's ratio is a product of many.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from trainers.engine.rows import sample
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig

Float64Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Toy:
    """One toy, and how it is trained."""

    name: str
    tokens: int
    """The vocabulary; each token can be a prompt, and can be sampled."""
    length: int
    """Sampled tokens of a rollout."""
    lr: float
    steps: int = 200
    groups: int = 2
    group_size: int = 4
    look_every: int = 4
    """Steps between points of the curve."""

    def policy(self, seed: int) -> NativePolicy:
        """A table, near uniform at first."""
        torch.manual_seed(seed)
        return NativePolicy(
            NativeConfig(
                self.tokens, 16, 16, 0, 1, 1, 2, tie_word_embeddings=False, max_position_embeddings=8
            )
        )


BANDIT = Toy("bandit", tokens=8, length=1, lr=0.01)
CHAIN = Toy("chain", tokens=6, length=6, lr=0.01)
FAST_CHAIN = replace(CHAIN, name="chain-fast", lr=0.04)
TOYS = (BANDIT, CHAIN, FAST_CHAIN)
"""The learning rates of the first two were chosen among 0.005, 0.01 and 0.02 at a lag of 0, on seeds that
the benchmark does not use; the third has four times as much, where learning is less sure."""


class Bandit:
    """What arms earn in each context."""

    def __init__(self, toy: Toy, seed: int) -> None:
        random = np.random.default_rng([seed, 1])
        self.rates_VV = random.uniform(0.0, 0.6, (toy.tokens, toy.tokens))
        self.rates_VV[np.arange(toy.tokens), random.integers(toy.tokens, size=toy.tokens)] = 0.9

    def rewards(self, prompts_B: Ids, sampled_BT: Ids, random: np.random.Generator) -> Float64Array:
        """Of rollouts, 0 or 1 each."""
        return (random.random(len(prompts_B)) < self.rates_VV[prompts_B, sampled_BT[:, 0]]).astype(np.float64)

    def expected(self, table_VV: Float64Array) -> float:
        """Mean reward over all prompts of a policy with these probabilities of the next token."""
        return float((table_VV * self.rates_VV).sum(1).mean())


class Chain:
    """The right successor of each token."""

    def __init__(self, toy: Toy, seed: int) -> None:
        self.length = toy.length
        self.right_V = np.random.default_rng([seed, 1]).permutation(toy.tokens)

    def rewards(self, prompts_B: Ids, sampled_BT: Ids, random: np.random.Generator) -> Float64Array:  # noqa: ARG002
        """Of rollouts: the share of tokens before the first wrong one."""
        before_BT = np.concatenate((prompts_B[:, None], sampled_BT[:, :-1]), axis=1)
        share_B: Float64Array = np.cumprod(self.right_V[before_BT] == sampled_BT, axis=1).mean(1)
        return share_B

    def expected(self, table_VV: Float64Array) -> float:
        """Mean reward over all prompts of a policy with these probabilities of the next token."""
        token_V, so_far_V, total = np.arange(len(self.right_V)), np.ones(len(self.right_V)), 0.0
        for _ in range(self.length):
            so_far_V = so_far_V * table_VV[token_V, self.right_V[token_V]]
            token_V, total = self.right_V[token_V], total + float(so_far_V.mean())
        return total / self.length


def make_world(toy: Toy, seed: int) -> Bandit | Chain:
    """What a toy rewards."""
    return Bandit(toy, seed) if toy.name == "bandit" else Chain(toy, seed)


@torch.no_grad()
def table(policy: NativePolicy) -> Float64Array:
    """Probabilities of the next token after each token, float64 [V, V]."""
    out: Float64Array = (
        policy(torch.arange(policy.config.vocab_size)[:, None])[:, 0].double().softmax(-1).numpy()
    )
    return out


@torch.no_grad()
def rollouts(
    policy: NativePolicy, prompts_B: Ids, length: int, random: np.random.Generator
) -> tuple[Ids, npt.NDArray[np.float32]]:
    """Tokens [B, length] sampled by the engine's sampler at temperature 1, and their logprobs."""
    count, last_B = len(prompts_B), torch.from_numpy(prompts_B).long()
    ones_B, zeros_B = np.ones(count, np.float32), np.zeros(count, np.int64)
    tokens, logprobs = [], []
    for _ in range(length):
        found = sample(
            policy(last_B[:, None])[:, 0], ones_B, zeros_B, ones_B, random.random(count, dtype=np.float32)
        )
        last_B = found.tokens
        tokens.append(found.tokens.numpy().astype(np.int32))
        logprobs.append(found.logprobs.numpy())
    return np.stack(tokens, axis=1), np.stack(logprobs, axis=1)
