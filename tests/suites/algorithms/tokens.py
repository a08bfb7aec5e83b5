"""Random tokens for losses and corrections, flat and padded, and what TRL's own loss makes of them."""

from collections import defaultdict

import numpy as np
import torch
from accelerate import Accelerator
from trl.trainer.grpo_trainer import GRPOTrainer

from trainers.losses.tokens import Tokens

SEEDS = range(20)


def tokens_of(seed, *, proximal="other", far=0.5, dtype=torch.float64):
    """Tokens of a few rollouts. `far` is the spread of log-ratios, `proximal` whether it is mu, pi, or
    another policy.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, int(random.integers(2, 6)))
    count = int(lengths.sum())
    behaviour = random.uniform(-4, -0.2, count)
    current = np.minimum(behaviour + far * random.normal(size=count), -1e-3)
    other = np.minimum(behaviour + far * random.normal(size=count), -1e-3)
    rollout = np.repeat(np.arange(len(lengths)), lengths)
    flat = {"behaviour": behaviour, "current": current, "other": other}
    return Tokens(
        torch.tensor(current, dtype=dtype, requires_grad=True),
        torch.tensor(behaviour, dtype=dtype),
        torch.tensor(flat[proximal], dtype=dtype),
        torch.tensor(random.normal(size=len(lengths))[rollout], dtype=dtype),
        torch.from_numpy(rollout),
        torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
    )


def shares(tokens, by):
    """What each token counts: a mean over all tokens, or over rollouts of their means."""
    counts = torch.bincount(tokens.rollout_N).double()
    return torch.full_like(tokens.behaviour_N, 1 / len(tokens.rollout_N)) if by == "token" else (
        1 / (len(counts) * counts[tokens.rollout_N])
    )  # fmt: skip


def value_and_gradient(loss, logprobs):
    """In one tensor."""
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return torch.cat((loss.detach().reshape(1), gradient.reshape(-1)))


def padded(values, tokens):
    """[R, T] with zeros behind each rollout's own."""
    counts = torch.bincount(tokens.rollout_N)
    out = torch.zeros(len(counts), int(counts.max()), dtype=values.dtype)
    out[tokens.rollout_N, tokens.time_N] = values
    return out


class TrlLoss(GRPOTrainer):
    """GRPOTrainer's loss on logprobs that are given to it. No model, no data, nothing else of the trainer."""

    def __init__(self, logprobs, **options):
        self.given = logprobs
        self.loss_type, self.importance_sampling_level = "grpo", "token"
        self.epsilon_low, self.epsilon_high = 0.2, 0.2
        self.beta = self.router_aux_loss_coef = 0.0
        self.top_entropy_quantile = 1.0
        self.off_policy_mask_threshold = None
        self.use_vllm = self.vllm_importance_sampling_correction = False
        self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.current_gradient_accumulation_steps = 1
        self.accelerator = Accelerator(cpu=True)
        self._metrics = {"eval": defaultdict(list)}
        self.model = torch.nn.Identity().eval()
        self.args = type(
            "Options", (), {"delta": None, "steps_per_generation": 1, "use_bias_correction_kl": False}
        )()
        vars(self).update(options)

    def _get_per_token_logps_and_entropies(self, *_args, **_options):
        return self.given, torch.zeros_like(self.given), None


def trl(tokens, weights=None, reference_N=None, **options):
    """TRL's loss and its gradient by the tokens' logprobs; `weights`, [R, T] or [R, 1], are its importance
    ratios, and `reference_N` the logprobs of its reference model.
    """
    mask = padded(torch.ones_like(tokens.behaviour_N), tokens)
    first = tokens.time_N == 0
    advantages = tokens.advantages_N[first]
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": padded(tokens.proximal_N, tokens),
        "sampling_per_token_logps": padded(tokens.behaviour_N, tokens),
        "num_items_in_batch": mask.sum(),
    }
    if reference_N is not None:
        inputs["ref_per_token_logps"] = padded(reference_N, tokens)
    if weights is not None:
        options |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
        inputs["importance_sampling_ratio"] = weights
    trainer = TrlLoss(padded(tokens.logprobs_N, tokens), **options)
    return value_and_gradient(trainer._compute_loss(trainer.model, inputs), tokens.logprobs_N)
