"""A tiny policy with a tokenizer, and a run whose recorded tokens it did not sample itself."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import TrainerCallback

from harnessgym.store import TraceStore
from tests.trainers.recorded_run import STEPS, make_run, record_groups, record_rollout
from trainers.learner import TrainerSettings
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.trl_bridge.training_run import TrainingRun

TOKENIZER = Path(__file__).parents[3] / "environments" / "lookup" / "policy"
REWARDS = {ordinal: [1.0, 0.0, 0.25] for ordinal in range(8)}


def save_tiny(folder, seed=0):
    torch.manual_seed(seed)
    save_policy(NativePolicy(NativeConfig(510, 16, 32, 1, 2, 1, 8, max_position_embeddings=64)), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    return folder


def off_policy_run(root, groups=2, branched=0, equal=False, lag=STEPS, **trainer):
    """A run of `groups` recorded groups; what the trainer loads are other weights than those that sampled.

    Every two groups are of a later version, from version 0 on, `lag` steps before they are trained. The first
    `branched` rollouts have a second row; with `equal` rewards there is nothing to learn.
    """
    model = save_tiny(root / "model")
    folder = make_run(root / "run", model, **trainer)
    rewards = dict.fromkeys(range(groups), [0.5] * 3) if equal else REWARDS
    for ordinal in range(groups):
        record_groups(folder, [ordinal], max(0, ordinal // 2 - lag), rewards)
    policy = load_policy(model)
    with TraceStore.open(folder.store_url()) as store:
        known = store.read(
            lambda conn: [row.id for row in conn.exec_driver_sql("SELECT id FROM rollouts ORDER BY id")]
        )
        for slot, rollout_id in enumerate(known[:branched]):
            record_rollout(store, policy, SimpleNamespace(id=rollout_id, slot=50 + slot), 0, 0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.0 if weight.dim() == 1 else 6.0)  # far off: ratios lie on both sides of every clip
    save_policy(policy, model)
    return folder


def training_run(folder):
    return TrainingRun(TrainerSettings(run=folder.root))


class Gradients(TrainerCallback):
    """Those of the first step, by parameter."""

    def __init__(self):
        self.found = {}

    def on_pre_optimizer_step(self, *_, model, **__):
        if not self.found:
            self.found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
