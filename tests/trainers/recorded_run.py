"""A run whose rollouts were recorded by nobody: what a trainer finds in a store, made without proxy, node
and engines.
"""

from functools import partial
from pathlib import Path

import torch

from harnessgym.config import validate
from harnessgym.message import Message, chain_digests, context_digest
from harnessgym.outcome.failure import StopReason
from harnessgym.run_config.run import RunConfig
from harnessgym.run_config.trainer import ControlSection, FilterSection, ReplaySection
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, calls, policies, rollouts, runs, sessions
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import new_id
from harnessgym.task import Task
from harnessgym.tokens import VersionSpan, hash_ids
from harnessgym.traces.forest import Forest
from trainers.grpo import Grpo
from trainers.learner import Learner
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.policy import token_logprobs
from trainers.ppo import PpoTrainer
from trainers.ppo_settings import ppo_settings_of
from trainers.trained_policy import TrainedPolicy

PROMPT = [3, 1, 4, 1, 5]
STEPS = 4
CURATION = (("filter", FilterSection), ("control", ControlSection), ("replay", ReplaySection))


def save_model(folder):
    """A tiny policy's folder."""
    torch.manual_seed(0)
    save_policy(NativePolicy(NativeConfig(32, 16, 32, 1, 2, 1, 8, max_position_embeddings=64)), folder)
    return folder


def make_run(root, model, further=(), **trainer):
    """`further` are the names of further policies, with the same starting weights.

    Settings of filter, control and replay may be given as if they were the trainer's.
    """
    curated = {
        name: {own: trainer.pop(own) for own in [*trainer] if own in section.model_fields}
        for name, section in CURATION
    }
    config = {
        "name": "t",
        "policy": {"path": str(model)},
        "policies": [{"name": name, "path": str(model)} for name in further],
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "h"}],
        "trainer": {"steps": STEPS, "groups_per_step": 2, "group_size": 3, "update": {"lr": 0.01}} | trainer,
        **curated,
    }
    folder = RunFolder(root)
    write_json(folder.config_path, validate(RunConfig, config, "test").model_dump(mode="json"))
    with TraceStore.create(folder.store_url()) as store:
        run_id = store.write(lambda conn: runs.add(conn, "t", config, "0", "training"))
        for name in ("policy", *further):
            store.write(lambda conn, name=name: policies.register(conn, run_id, name))
    return folder


def record_groups(folder, ordinals, version=0, rewards=None, unfinished=(), further=None):
    """Finished groups whose completions are random, with the policy's own logprobs; rewards depend on the
    tokens.

    `rewards` gives a group's rewards by its ordinal, where they should be others; `unfinished` ordinals go on
    running; `further` has the versions of further policies, by name: each answers a call of every rollout but
    the first of a group.
    """
    config = folder.config()
    policy = load_policy(Path(config.policy.path))
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        task_id = store.write(lambda conn: runs.add_task(conn, "lookup", Task("t", "do")))
        for ordinal in ordinals:
            named = store.read(lambda conn: policies.of_run(conn, run.id))
            others = {named[name]: oldest for name, oldest in (further or {}).items()}
            spec = GroupSpec(
                run.id, task_id, policy_id, "train", ordinal, version, {}, ("h",) * 3, "process", (1, 2, 3),
                submitted_versions=others or None,
            )  # fmt: skip
            store.write(partial(rollouts.submit, spec=spec))
            claimed = store.write(lambda conn: rollouts.claim(conn, run.id, "node", 60.0, 3))
            if ordinal in unfinished:
                continue
            for row in claimed:
                reward = record_rollout(store, policy, row, ordinal, version)
                for name, other in (further or {}).items() if row.slot else ():
                    other_id = store.read(lambda conn: policies.of_run(conn, run.id))[name]
                    record_rollout(store, policy, row, ordinal, other, other_id)
                if rewards and ordinal in rewards:
                    reward = rewards[ordinal][row.slot]
                outcome = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward})
                store.write(partial(rollouts.finish, outcome=outcome))


def record_rollout(store, policy, row, ordinal, version, policy_id=None):
    draw = torch.Generator().manual_seed(100 * ordinal + row.slot)
    completion = torch.randint(0, 32, (6,), generator=draw).tolist()
    with torch.no_grad():
        ids = torch.tensor([PROMPT + completion])
        logprobs = token_logprobs(policy(ids), ids)[0, len(PROMPT) :].tolist()
    session = store.write(lambda conn: sessions.add(conn, row.id, new_id(), sampling={"temperature": 1.0}))
    forest, call_id = Forest(session.id), new_id()
    chain = chain_digests(context_digest(()), (Message("user", "hi"),))[-1]
    prompt, _ = forest.add_prompt(PROMPT, None)
    intent = calls.CallIntent(
        call_id, session.id, row.id, 0, "chat", "policy", "keep", "d", chain,
        len(PROMPT), hash_ids(PROMPT), prompt.id, "engine",
        sampling_applied={"temperature": 1.0, "top_p": 1.0, "top_k": 0}, policy_id=policy_id,
    )  # fmt: skip
    store.write(lambda conn: calls.intend(conn, intent, prompt))
    segment = forest.add_completion(call_id, prompt.id, completion, logprobs, "a" + call_id)
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(completion)}
    outcome = calls.CallOutcome(
        call_id,
        segment,
        (VersionSpan(0, 6, version),),
        "a" + call_id,
        "stop",
        None,
        "engine",
        usage,
        {},
        "delivered",
    )
    store.write(partial(calls.finish, outcome=outcome))
    store.write(lambda conn: sessions.seal(conn, session.id))
    return float(sum(completion) % 2)


def learner_of(folder, store, policy=""):
    """What the run's algorithm trains with, resumed."""
    config = folder.config().of_policy(policy)
    own = RunFolder(folder.root, policy)
    if config.trainer.algorithm == "ppo":
        settings = ppo_settings_of(config)
        trained_policy = TrainedPolicy(config, versions=own.versions, critic=settings.critic)
        learner = Learner(own, config, store, trained_policy, PpoTrainer(config, settings))
    else:
        trained_policy = TrainedPolicy(config, versions=own.versions)
        learner = Learner(own, config, store, trained_policy, Grpo(config, store, trained_policy))
    learner.resume()
    return learner
