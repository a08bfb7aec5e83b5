"""The trainer on a real store: exact resume, replay of a step that was cut off, staleness, control."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from harnessgym.config import validate
from harnessgym.errors import PolicyError
from harnessgym.message import Message, chain_digests, context_digest
from harnessgym.run_config import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, advantages, calls, ledger, policies, rollouts, runs, sessions, workers
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import new_id
from harnessgym.task import Task
from harnessgym.tokens import VersionSpan, hash_ids
from harnessgym.traces.forest import Forest
from harnessgym.traces.verify import verify
from trainers import checkpoint
from trainers.grpo import Learner, TrainerSettings, train
from trainers.policy import Policy, PolicyConfig, load_policy, published_weights, save_policy, token_logprobs
from trainers.weights.chain import read_version

PROMPT = [3, 1, 4, 1, 5]
STEPS = 4


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    save_policy(Policy(PolicyConfig(32, 16, 32, 1, 2, 1, 8, max_position_embeddings=64)), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def folder(tmp_path, model):
    return make_run(tmp_path / "run", model)


def make_run(root, model, **trainer):
    config = {
        "name": "t",
        "policy": {"path": str(model)},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "h"}],
        "trainer": {"steps": STEPS, "groups_per_step": 2, "group_size": 3, "update": {"lr": 0.01}} | trainer,
    }
    folder = RunFolder(root)
    write_json(folder.config_path, validate(RunConfig, config, "test").model_dump(mode="json"))
    with TraceStore.create(folder.store_url()) as store:
        store.write(lambda conn: runs.add(conn, "t", config, "0", "training"))
    return folder


def record_groups(folder, ordinals, version=0, weights=None):
    """Finished groups whose completions are random, with the policy's own logprobs; rewards depend on the tokens."""
    config = folder.config()
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        task_id = store.write(lambda conn: runs.add_task(conn, "lookup", Task("t", "do")))
        for ordinal in ordinals:
            spec = GroupSpec(run.id, task_id, policy_id, "train", ordinal, version, {}, ("h",) * 3, "process", (1, 2, 3))
            store.write(partial(rollouts.submit, spec=spec))
            claimed = store.write(lambda conn: rollouts.claim(conn, run.id, "node", 60.0, 3))
            for row in claimed:
                reward = record_rollout(store, config, row, ordinal, version)
                outcome = RolloutOutcome(row.id, "finished", "valid", {"reward": reward})
                store.write(partial(rollouts.finish, outcome=outcome))


def record_rollout(store, config, row, ordinal, version):
    draw = torch.Generator().manual_seed(100 * ordinal + row.slot)
    completion = torch.randint(0, 32, (6,), generator=draw).tolist()
    with torch.no_grad():
        ids = torch.tensor([PROMPT + completion])
        logprobs = token_logprobs(load_policy(Path(config.policy.path))(ids), ids)[0, len(PROMPT) :].tolist()
    session = store.write(lambda conn: sessions.add(conn, row.id, new_id(), sampling={"temperature": 1.0}))
    forest, call_id = Forest(session.id), new_id()
    chain = chain_digests(context_digest(()), (Message("user", "hi"),))[-1]
    prompt, _ = forest.add_prompt(PROMPT, None)
    intent = calls.CallIntent(
        call_id, session.id, row.id, 0, "chat", "policy", "keep", "d", chain,
        len(PROMPT), hash_ids(PROMPT), prompt.id, "engine",
        sampling_applied={"temperature": 1.0, "top_p": 1.0, "top_k": 0},
    )  # fmt: skip
    store.write(lambda conn: calls.intend(conn, intent, prompt))
    segment = forest.add_completion(call_id, prompt.id, completion, logprobs, "a" + call_id)
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(completion)}
    outcome = calls.CallOutcome(
        call_id, segment, (VersionSpan(0, 6, version),), "a" + call_id, "stop", None, "engine", usage, {}, "delivered"
    )
    store.write(partial(calls.finish, outcome=outcome))
    store.write(lambda conn: sessions.seal(conn, session.id))
    return float(sum(completion) % 2)


def learner_of(folder, store):
    learner = Learner(folder, folder.config(), store)
    learner.resume()
    return learner


def weights_after(folder, stops):
    """Final weights when the trainer is started anew after each number of steps in `stops`."""
    for stop in stops:
        with TraceStore.open(folder.store_url()) as store:
            learner = learner_of(folder, store)
            while learner.step < stop:
                learner.train_step(learner.next_groups())
            found = published_weights(learner.policy)
    return found


def test_a_resumed_trainer_goes_on_exactly(tmp_path, model):
    runs_ = [make_run(tmp_path / name, model, max_staleness=STEPS) for name in ("straight", "interrupted")]
    for run in runs_:
        record_groups(run, range(2 * STEPS))
    straight, interrupted = weights_after(runs_[0], [STEPS]), weights_after(runs_[1], [1, 3, STEPS])
    assert all(torch.equal(straight[name], interrupted[name]) for name in straight)


def test_a_step_makes_a_version_a_ledger_entry_and_consumed_groups(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        metrics = learner.train_step(learner.next_groups())
        assert (metrics["version"], metrics["staleness"]) == (1, 0)
        assert store.read(lambda conn: ledger.steps(conn, learner.policy_id)) == [1]
        assert store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train")) == {"consumed": 2}
        latest = store.read(lambda conn: policies.latest(conn, learner.policy_id))
        assert (latest.version, latest.parent_version, latest.step) == (1, 0, 1)


def test_a_step_stores_the_advantage_of_every_token_that_it_trains(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        groups = learner.next_groups()
        learner.train_step(groups)
        expected = {
            member.rollout_id: float(value)
            for item in groups
            for member, value in zip(
                item.group.members, learner.estimator([member.reward for member in item.group.members]), strict=True
            )
        }
        assert len(set(expected.values())) > 1
        for rollout_id, value in expected.items():
            (found,) = store.read(lambda conn, name=rollout_id: advantages.of_rollout(conn, name))
            assert (found.start, found.end, found.step, found.version) == (0, 6, 1, 1)
            assert found.value == pytest.approx(value)
        assert verify(store).findings == ()
        before = store.read(lambda conn: advantages.of_rollout(conn, rollout_id))
        learner_of(folder, store)  # which replays the step's record
        assert store.read(lambda conn: advantages.of_rollout(conn, rollout_id)) == before


def test_a_step_cut_off_after_its_checkpoint_is_replayed_once(folder, model, tmp_path):
    """What a SIGKILL between checkpoint and commit leaves: a checkpoint the store knows nothing of."""
    record_groups(folder, range(2))
    twin = make_run(tmp_path / "twin", model)
    record_groups(twin, range(2))
    with TraceStore.open(twin.store_url()) as store:
        learner = learner_of(twin, store)
        learner.train_step(learner.next_groups())
        done = checkpoint.load_newest(twin.checkpoints)
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        groups = [item.group.id for item in learner.next_groups()]
        shares = tuple(
            ledger.TrainedRollout(member.rollout_id, 6, 0) for item in learner.next_groups() for member in item.group.members
        )
        record = replace(done.record, group_ids=tuple(groups), trained=shares)
        path = str(folder.versions / "v00000001")
        record = replace(record, version=replace(record.version, path=path))
        checkpoint.save(folder.checkpoints, replace(done, record=record))
    for _ in range(2):
        with TraceStore.open(folder.store_url()) as store:
            learner = learner_of(folder, store)
            assert (learner.step, learner.version) == (1, 1)
            assert store.read(partial(ledger.steps, policy_id=learner.policy_id)) == [1]
            assert store.read(partial(rollouts.group_states, run_id=learner.run.id, purpose="train")) == {"consumed": 2}


def test_without_a_checkpoint_it_continues_from_the_published_weights_under_a_new_number(folder):
    record_groups(folder, range(4))
    before = weights_after(folder, [1])
    shutil.rmtree(folder.checkpoints)
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        assert (learner.step, learner.version) == (1, 1)
        assert all(torch.equal(value, before[name]) for name, value in published_weights(learner.policy).items())
        assert learner.train_step(learner.next_groups())["version"] == 2


def test_going_back_a_checkpoint_orphans_later_versions_and_gives_their_groups_back(tmp_path, model):
    folder = make_run(tmp_path / "run", model, max_staleness=STEPS)
    record_groups(folder, range(2 * STEPS))
    weights_after(folder, [2])
    shutil.rmtree(folder.checkpoints / "step-000002")
    weights_after(folder, [STEPS])
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, run.id, "policy"))
        found = store.read(lambda conn: policies.versions(conn, policy_id))
        assert [(item.version, item.parent_version, item.step, item.orphaned) for item in found] == [
            (0, None, 0, False), (1, 0, 1, False), (2, 1, 2, True), (3, 1, 2, False), (4, 3, 3, False), (5, 4, 4, False),
        ]  # fmt: skip
        assert store.read(lambda conn: rollouts.group_states(conn, run.id, "train")) == {"consumed": 2 * STEPS}
        assert verify(store, run.id).findings == ()


def test_a_group_that_is_too_stale_is_dropped_and_counted(folder):
    record_groups(folder, range(6))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(learner.next_groups())
        learner.train_step(learner.next_groups())  # the same tokens, one version later: within η = 1
        stale = learner.store.read(lambda conn: rollouts.complete_groups(conn, learner.run.id, "train", 2))
        assert len(stale) == 2
        record_groups(folder, range(6, 8), version=2)
        fresh = learner.next_groups()
        assert [item.group.ordinal for item in fresh] == [6, 7]
        assert store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train"))["dropped"] == 2


def test_shuffled_rewards_change_the_update(tmp_path, folder, model):
    control = make_run(tmp_path / "control", model, reward_shuffle=True)
    for run in (folder, control):
        record_groups(run, range(2))
    plain, shuffled = weights_after(folder, [1]), weights_after(control, [1])
    assert any(not torch.equal(plain[name], shuffled[name]) for name in plain)


def test_train_runs_to_its_last_step_and_logs_each(tmp_path, model):
    folder = make_run(tmp_path / "run", model, max_staleness=STEPS)  # all groups are recorded under version 0
    record_groups(folder, range(2 * STEPS))
    train(TrainerSettings(run=folder.root))
    lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["staleness"] for line in lines] == [0, 1, 2, 3]


def published(folder, count):
    """Versions of a run that are on disk, as the store and the manifests describe them."""
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, run.id, "policy"))
        rows = store.read(lambda conn: policies.versions(conn, policy_id))
        assert verify(store).findings == ()
    assert len(rows) == count
    return {row.version: (row, *read_version(Path(row.path))) for row in rows if Path(row.path).exists()}


def test_versions_are_published_as_deltas_and_a_resumed_run_publishes_the_same_tensors(tmp_path, model):
    publish = {"kind": "delta", "dtype": "bfloat16", "full_every": 3}
    update = {"lr": 1e-5}
    runs_ = {
        "straight": make_run(tmp_path / "a", model, max_staleness=STEPS, publish=publish, update=update),
        "resumed": make_run(tmp_path / "b", model, max_staleness=STEPS, publish=publish, update=update),
        "full": make_run(tmp_path / "c", model, max_staleness=STEPS, publish=publish | {"kind": "full"}, update=update),
    }
    stops = {"straight": [STEPS], "resumed": [1, 3, STEPS], "full": [STEPS]}
    for name, run in runs_.items():
        record_groups(run, range(2 * STEPS))
        weights_after(run, stops[name])
    found = {name: published(run, STEPS + 1) for name, run in runs_.items()}
    assert [row.kind for row, *_ in found["straight"].values()] == ["full", "delta", "delta", "full", "delta"]
    assert {row.kind for row, *_ in found["full"].values()} == {"full"}
    for version, (row, manifest, weights) in found["straight"].items():
        assert manifest.kind == row.kind
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
        for other in ("resumed", "full"):
            assert found[other][version][0].checksum == row.checksum


def test_a_version_lost_after_its_checkpoint_comes_back_bit_by_bit_in_another_kind(tmp_path, model):
    run = make_run(tmp_path / "run", model, publish={"dtype": "bfloat16"}, update={"lr": 1e-5})
    record_groups(run, range(2))
    weights_after(run, [1])
    before = published(run, 2)
    assert before[1][0].kind == "delta"
    for path in run.versions.iterdir():
        shutil.rmtree(path)
    weights_after(run, [1])
    _, manifest, weights = published(run, 2)[1]
    assert manifest.kind == "full"
    assert all(tensor.equal(before[1][2][name]) for name, tensor in weights.items())


def test_other_weights_under_a_published_number_stop_the_trainer(tmp_path, model):
    run = make_run(tmp_path / "run", model, publish={"dtype": "bfloat16"})
    weights_after(run, [0])
    config = json.loads(run.config_path.read_text())
    config["trainer"]["publish"]["dtype"] = "float16"
    write_json(run.config_path, config)
    with pytest.raises(PolicyError, match="holds other weights than the checkpoint"):
        weights_after(run, [0])


def test_old_versions_leave_the_disk_but_those_that_a_worker_serves(tmp_path, model):
    run = make_run(tmp_path / "run", model, max_staleness=STEPS, publish={"kind": "full", "keep": 2})
    record_groups(run, range(2 * STEPS))
    with TraceStore.open(run.store_url()) as store:
        only = store.read(runs.only)
        row = workers.WorkerRow("w", only.id, "embedded", "http://w", 1, "ready")
        store.write(lambda conn: workers.upsert(conn, row))
    weights_after(run, [STEPS])
    assert sorted(published(run, STEPS + 1)) == [1, STEPS - 1, STEPS]
