"""The gradient of a step, family by family, is that of TRL's trainer on the same rows."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from harnessgym.traces.trajectories import Row
from tests.trainers.policies.families import FAMILIES, tiny_model
from trainers.optimizer import make_optimizer
from trainers.policies.transformers import TransformersPolicy
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings

PROMPT, LENGTHS = 20, (9, 17, 4)
ADVANTAGES = [1.0, -0.5, 0.25]
OPTIONS = {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.0, "temperature": 0.8}


def rows_of(seed=3):
    """Rollouts of one prompt, sampled by a policy that is near, but not this one."""
    draw = np.random.default_rng(seed)
    prompt = draw.integers(3, 97, PROMPT)
    rows = []
    for index, length in enumerate(LENGTHS):
        ids = np.concatenate((prompt, draw.integers(3, 97, length))).astype(np.int32)
        mask = (np.arange(len(ids)) >= PROMPT).astype(np.int32)
        logprobs = np.where(mask == 1, draw.uniform(-6, -3, len(ids)), 0).astype(np.float32)
        rows.append(Row(f"r{index}", "g", ids, mask, logprobs, mask - 1))
    return rows


def gradients_of_trl(model, rows):
    """Gradients by parameter, of GRPOTrainer's loss on a model. No data, nothing else of the trainer."""
    # Importing it takes ten seconds, which every process that only collects tests would spend.
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, temperature=OPTIONS["temperature"], outputs=("log_probs", "entropy"))
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    vars(trainer).update(
        OPTIONS, importance_sampling_level="token", epsilon_low=0.2, router_aux_loss_coef=0.0,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        vllm_importance_sampling_correction=False, aux_loss_enabled=False, _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1, accelerator=Accelerator(cpu=True), model=model,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)}, model_kwarg_keys=(),
        args=type("Options", (), {"delta": None, "steps_per_generation": 1, "use_bias_correction_kl": False})(),
    )  # fmt: skip
    width = max(LENGTHS)

    def padded(values, dtype):
        return torch.stack([torch.nn.functional.pad(
            torch.from_numpy(each[PROMPT:].copy()).to(dtype), (0, width - len(each) + PROMPT)) for each in values])  # fmt: skip

    behaviour = padded([row.logprobs for row in rows], torch.float32)
    inputs = {
        "prompt_ids": torch.stack([torch.from_numpy(row.ids[:PROMPT]).long() for row in rows]),
        "prompt_mask": torch.ones(len(rows), PROMPT, dtype=torch.long),
        "completion_ids": padded([row.ids for row in rows], torch.long),
        "completion_mask": padded([row.mask for row in rows], torch.long),
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": behaviour,
        "sampling_per_token_logps": behaviour,
        "num_items_in_batch": torch.tensor(float(sum(LENGTHS))),
    }
    model.zero_grad()
    trainer._compute_loss(model, inputs).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama4"])  # TRL 1.16 cannot train it
def test_a_step_has_the_gradient_of_trl_s_on_the_same_rows(name):
    rows = rows_of()
    expected = gradients_of_trl(tiny_model(name).eval(), rows)
    policy = TransformersPolicy(tiny_model(name))
    settings = UpdateSettings(lr=1e-9, max_grad_norm=1e9, temperature=OPTIONS["temperature"])
    metrics = policy_update(policy, make_optimizer(policy, settings), rows, ADVANTAGES, settings)
    assert 0 < metrics.clip_fraction < 1
    found = {each.removeprefix("model."): parameter.grad for each, parameter in policy.named_parameters()}
    assert found.keys() >= expected.keys()
    for each, gradient in expected.items():
        assert (found[each] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, each
