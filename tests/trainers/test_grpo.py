"""The trainer on a real store: exact resume, replay of a step that was cut off, staleness, control."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from harnessgym.errors import HarnessGymError, PolicyError
from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore, advantages, ledger, policies, rollouts, runs, workers
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import STEPS, learner_of, make_run, record_groups, save_model
from tests.trainers.started_again import after_processes, after_stops, train_with_kills
from trainers import checkpoint
from trainers.grpo import train
from trainers.learner import TrainerSettings
from trainers.policies.loading import load_policy
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def folder(tmp_path, model):
    return make_run(tmp_path / "run", model)


def weights_after(folder, stops):
    """Final weights when the trainer is started anew after each number of steps in `stops`."""
    return after_stops(folder, stops).policy.published()


AVERAGE = {"lr": 0.01, "proximal": "ewma", "corrections": [{"name": "icepop", "low": 0.01, "high": 100.0}]}
SNAPSHOT = {"lr": 0.01, "loss": "gspo", "proximal": "snapshot", "lr_rule": "ess"}
LOGLINEAR = {"lr": 0.01, "loss": "minpro", "proximal": "loglinear"}


@pytest.mark.parametrize(
    "update", [{"lr": 0.01}, AVERAGE, SNAPSHOT, LOGLINEAR], ids=["behaviour", "ewma", "snapshot", "loglinear"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_trainer_goes_on_exactly(tmp_path, model, update, stream):
    options = {"max_staleness": STEPS, "stream": stream, "update": update}
    runs_ = [make_run(tmp_path / name, model, **options) for name in ("straight", "interrupted")]
    for run in runs_:
        record_groups(run, range(2 * STEPS))
    straight, interrupted = weights_after(runs_[0], [STEPS]), weights_after(runs_[1], [1, 3, STEPS])
    assert all(torch.equal(straight[name], interrupted[name]) for name in straight)


def test_a_step_makes_a_version_a_ledger_entry_and_consumed_groups(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        metrics = learner.train_step(list(learner.arriving()))
        learner.settle()
        assert (metrics["version"], metrics["staleness"]) == (1, 0)
        assert store.read(lambda conn: ledger.steps(conn, learner.policy_id)) == [1]
        assert store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train")) == {
            "consumed": 2
        }
        latest = store.read(lambda conn: policies.latest(conn, learner.policy_id))
        assert (latest.version, latest.parent_version, latest.step) == (1, 0, 1)


def test_a_step_stores_the_advantage_of_every_token_that_it_trains(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        groups = list(learner.arriving())
        learner.train_step(groups)
        learner.settle()
        expected = {
            member.rollout_id: float(value)
            for item in groups
            for member, (value,) in zip(
                item.group.members, learner.algorithm.estimator(item.scored), strict=True
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
        learner.train_step(list(learner.arriving()))
        learner.settle()
        done = checkpoint.load_newest(twin.checkpoints)
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        groups = [item.group.id for item in list(learner.arriving())]
        shares = tuple(
            ledger.TrainedRollout(member.rollout_id, 6, 0)
            for item in list(learner.arriving())
            for member in item.group.members
        )
        record = replace(done.record, group_ids=tuple(groups), trained=shares)
        path = str(folder.versions / "v00000001")
        record = replace(record, version=replace(record.version, path=path))
        checkpoint.save(folder.checkpoints, replace(done, record=record, run=learner.run.id))
    for _ in range(2):
        with TraceStore.open(folder.store_url()) as store:
            learner = learner_of(folder, store)
            assert (learner.step, learner.version) == (1, 1)
            assert store.read(partial(ledger.steps, policy_id=learner.policy_id)) == [1]
            assert store.read(partial(rollouts.group_states, run_id=learner.run.id, purpose="train")) == {
                "consumed": 2
            }


def test_without_a_checkpoint_it_continues_from_the_published_weights_under_a_new_number(folder):
    record_groups(folder, range(4))
    before = weights_after(folder, [1])
    shutil.rmtree(folder.checkpoints)
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        assert (learner.step, learner.version) == (1, 1)
        assert all(
            torch.equal(value, before[name])
            for name, value in learner.trained_policy.policy.published().items()
        )
        assert learner.train_step(list(learner.arriving()))["version"] == 2
        learner.settle()


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
        assert store.read(lambda conn: rollouts.group_states(conn, run.id, "train")) == {
            "consumed": 2 * STEPS
        }
        assert verify(store, run.id).findings == ()


def test_a_group_that_is_too_stale_is_dropped_and_counted(folder):
    record_groups(folder, range(6))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(list(learner.arriving()))
        learner.train_step(list(learner.arriving()))  # the same tokens, one version later: within η = 1
        learner.settle()
        stale = learner.store.read(lambda conn: rollouts.complete_groups(conn, learner.run.id, "train", 2))
        assert len(stale) == 2
        record_groups(folder, range(6, 8), version=2)
        fresh = list(learner.arriving())
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


def final_weights(folder):
    """Of the newest version that the store has."""
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, run.id, "policy"))
        newest = store.read(lambda conn: policies.latest(conn, policy_id))
        assert verify(store, run.id).findings == ()
    return newest.step, read_version(version_path(folder.versions, newest.version))[1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "options",
    [{}, {"stream": True}, {"reuse": 1}, {"lora": {"rank": 2}}, {"processes": 2, "update": AVERAGE}],
    ids=str,
)
def test_a_trainer_killed_at_any_moment_ends_with_the_weights_of_one_that_was_not(tmp_path, model, options):
    steps = 8
    groups = 2 * steps - 3 * options.get("reuse", 0)  # some come again
    runs_ = [
        make_run(tmp_path / name, model, steps=steps, max_staleness=steps, **options)
        for name in ("straight", "killed")
    ]
    for run in runs_:
        record_groups(run, range(groups))
    train(TrainerSettings(run=runs_[0].root))
    assert train_with_kills(train, runs_[1], 4)
    (step, straight), (same, killed) = (final_weights(run) for run in runs_)
    assert step == same == steps
    assert all(torch.equal(straight[name], killed[name]) for name in straight)
    with TraceStore.open(runs_[1].store_url()) as store:
        run = store.read(runs.only)
        assert store.read(lambda conn: rollouts.group_states(conn, run.id, "train")) == {"consumed": groups}


def test_a_version_is_published_only_behind_its_checkpoint_and_what_stops_that_is_told(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        shutil.rmtree(folder.checkpoints)
        folder.checkpoints.write_text("in the way")
        learner.train_step(list(learner.arriving()))
        with pytest.raises(OSError, match="checkpoints"):
            learner.settle()
        assert store.read(lambda conn: policies.latest(conn, learner.policy_id)).version == 0
        assert not version_path(folder.versions, 1).exists()
        assert store.read(lambda conn: rollouts.group_states(conn, learner.run.id, "train")) == {
            "complete": 2
        }


def test_who_waits_for_groups_hears_that_the_version_they_need_cannot_be_written(folder):
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        shutil.rmtree(folder.checkpoints)
        folder.checkpoints.write_text("in the way")
        learner.train_step(list(learner.arriving()))
        with pytest.raises(OSError, match="checkpoints"):
            list(learner.arriving())


def test_the_next_batch_has_no_group_of_a_step_that_is_not_published_yet(tmp_path, model):
    folder = make_run(tmp_path / "run", model, max_staleness=STEPS)
    record_groups(folder, range(4))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(list(learner.arriving()))
        assert [item.group.ordinal for item in list(learner.arriving())] == [2, 3]
        learner.settle()


def test_streamed_gradients_train_the_same_policy_up_to_rounding(tmp_path, model):
    runs_ = [
        make_run(tmp_path / str(stream), model, max_staleness=STEPS, stream=stream)
        for stream in (False, True)
    ]
    for run in runs_:
        record_groups(run, range(2 * STEPS))
    whole, streamed = (weights_after(run, [STEPS]) for run in runs_)
    assert all(torch.allclose(whole[name], streamed[name], atol=2e-4) for name in whole)
    assert any(
        not torch.equal(whole[name], value) for name, value in learner_weights(tmp_path, model).items()
    )


def learner_weights(tmp_path, model):
    """Those that training starts from."""
    folder = make_run(tmp_path / "untrained", model)
    with TraceStore.open(folder.store_url()) as store:
        return learner_of(folder, store).trained_policy.policy.published()


def test_metrics_count_what_was_given_up_and_where_time_went(tmp_path, model):
    folder = make_run(tmp_path / "run", model, when_stale="requeue", max_staleness=0, zero_signal="refill")
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(list(learner.arriving()))
        learner.settle()
        record_groups(folder, [2], version=0)
        record_groups(folder, range(3, 6), version=1, rewards={3: [1.0, 1.0, 1.0]})
        learner.train_step(list(learner.arriving()))
        learner.settle()
    line = json.loads(folder.metrics_path.read_text().splitlines()[-1])
    assert (line["requeued"], line["no_signal"], line["dropped"], line["reduced"]) == (1, 1, 0, 0)
    assert {"wait_s", "step_s", "held_s", "checkpoint_s", "publish_s"} <= set(line)


def test_settings_that_contradict_each_other_are_refused(tmp_path, model):
    with pytest.raises(HarnessGymError, match="min_group is 4, but a group has only 3"):
        make_run(tmp_path / "a", model, min_group=4)
    with pytest.raises(HarnessGymError, match="set stream = false"):
        make_run(tmp_path / "b", model, stream=True, reward_shuffle=True)


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"periodic": True, "max_staleness": 2}, "periodic = true needs max_staleness = 0"),
        ({"periodic": True, "stream": False}, "periodic = true needs stream = True"),
        ({"periodic": True, "when_stale": "wait"}, "periodic = true needs when_stale = drop"),
        ({"periodic": True, "over_launch": 2}, "periodic training does not allow"),
        ({"periodic": True, "reuse": 1}, "η = 0 does not allow"),
        ({"periodic": True, "reward_shuffle": True}, "set stream = false"),
        ({"over_launch": 2}, "set when_stale to drop or requeue"),
        ({"over_launch": 2, "when_stale": "drop", "max_staleness": 0}, "raise max_staleness"),
        ({"over_launch": 0.5, "when_stale": "drop"}, "greater than or equal to 1"),
        ({"reuse": 1, "max_staleness": 0}, "raise trainer.max_staleness"),
        ({"reuse": 1, "reuse_share": 0.4}, "of 2 groups is less than one group"),
        ({"reuse": 1, "reuse_share": 1.0}, "less than 1"),
        ({"reuse": 1, "reward_shuffle": True}, "set replay.reuse = 0"),
    ],
    ids=str,
)
def test_modes_that_exclude_each_other_are_refused(tmp_path, model, trainer, words):
    with pytest.raises(HarnessGymError, match=words):
        make_run(tmp_path / "run", model, **trainer)


def test_periodic_training_is_named_once_and_stored_as_what_it_is_made_of(tmp_path, model):
    options = make_run(tmp_path / "run", model, periodic=True).config().trainer
    assert (options.periodic, options.max_staleness, options.when_stale, options.stream) == (
        True,
        0,
        "drop",
        True,
    )


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
        "full": make_run(
            tmp_path / "c", model, max_staleness=STEPS, publish=publish | {"kind": "full"}, update=update
        ),
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
    with pytest.raises(PolicyError, match="has other weights than the checkpoint"):
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_that_changes_its_number_of_processes_goes_on_as_one_that_does_not(tmp_path, model, stream):
    stops = {"straight": [(1, 3)], "changing": [(1, 1), (2, 2), (1, 3)]}
    found = {}
    for name, each in stops.items():
        run = make_run(
            tmp_path / name,
            model,
            max_staleness=STEPS,
            stream=stream,
            update={"lr": 0.01, "max_grad_norm": 1e9},
        )
        record_groups(run, range(6))
        found[name] = after_processes(train, run, each)
        assert final_weights(run)[0] == 3
        assert [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()[-1:]] == [3]
    straight, changed = found["straight"], found["changing"]
    assert (straight.step, straight.version) == (changed.step, changed.version) == (3, 3)
    assert all(
        torch.allclose(changed.weights[name], tensor, rtol=1e-4, atol=2e-5)
        for name, tensor in straight.weights.items()
    )
    for index, values in straight.optimizer["state"].items():
        for name, value in values.items():
            assert torch.allclose(changed.optimizer["state"][index][name], value, rtol=1e-4, atol=1e-6)
    assert torch.equal(straight.randoms[0].torch, changed.randoms[0].torch)
    assert len(changed.randoms) == 1


@pytest.mark.timeout(120)
def test_two_processes_publish_the_starting_weights_that_one_publishes_and_resume_exactly(tmp_path, model):
    runs_ = {
        name: make_run(tmp_path / name, model, max_staleness=STEPS) for name in ("one", "two", "resumed")
    }
    for run in runs_.values():
        record_groups(run, range(4))
    after_processes(train, runs_["one"], [(1, 2)])
    two, resumed = (
        after_processes(train, runs_[name], stops)
        for name, stops in [("two", [(2, 2)]), ("resumed", [(2, 1), (2, 2)])]
    )
    assert len({read_version(version_path(run.versions, 0))[0].checksum for run in runs_.values()}) == 1
    assert all(torch.equal(two.weights[name], tensor) for name, tensor in resumed.weights.items())
    assert len(two.randoms) == 2


@pytest.mark.timeout(120)
def test_several_processes_go_on_from_published_weights_where_the_checkpoint_is_gone(tmp_path, model):
    run = make_run(tmp_path / "run", model, max_staleness=STEPS)
    record_groups(run, range(4))
    after_processes(train, run, [(1, 1)])
    before = final_weights(run)[1]
    shutil.rmtree(run.checkpoints)
    found = after_processes(train, run, [(2, 2)])
    assert (found.step, found.version) == (2, 2)
    assert any(not torch.equal(before[name], tensor) for name, tensor in found.weights.items())
    assert all(torch.allclose(before[name], tensor, atol=0.05) for name, tensor in found.weights.items())


def test_an_average_that_began_again_is_not_the_one_that_went_on(tmp_path, model):
    """So the state in the checkpoint is what a resumed trainer goes on from."""
    run = make_run(tmp_path / "run", model, max_staleness=STEPS, update=AVERAGE | {"lr": 0.05})
    record_groups(run, range(2 * STEPS))
    weights_after(run, [2])
    found = checkpoint.load_newest(run.checkpoints)
    assert found.proximal["total"] > 1
    assert any(
        not torch.equal(tensor, found.proximal["weights"][name])
        for name, tensor in packed(model, found.weights).items()
    )


def packed(model, weights):
    return load_policy(model).state_dict_of(weights)


def test_rewards_are_trained_on_as_they_are_where_the_baseline_is_chosen(tmp_path, model):
    update = {"loss": "reinforce", "proximal": "current", "baseline": "minimum_variance", "lr_rule": "ess"}
    run = make_run(tmp_path / "run", model, advantage="reward", update=update)
    record_groups(run, range(2), rewards={0: [1.0, 0.0, 0.0], 1: [1.0, 1.0, 0.0]})
    with TraceStore.open(run.store_url()) as store:
        learner = learner_of(run, store)
        groups = list(learner.arriving())
        metrics = learner.train_step(groups)
        learner.settle()
        assert 0 < metrics["baseline"] < 1
        assert metrics["lr"] == pytest.approx(4e-4 * metrics["rollout_ess"] ** 0.5)
        found = store.read(lambda conn: advantages.of_rollout(conn, groups[0].group.members[0].rollout_id))
        assert [entry.value for entry in found] == [1.0]
