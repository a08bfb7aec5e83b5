"""PPO on a real store: advantages by hand, exact resume, what its settings refuse."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harnessgym.config import validate
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.run_config.run import RunConfig
from harnessgym.store import TraceStore, advantages, ledger, rollouts, runs
from harnessgym.traces.trajectories import Row
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import STEPS, learner_of, make_run, record_groups, save_model
from tests.trainers.started_again import after_processes, after_stops, train_with_kills
from trainers import checkpoint
from trainers.advantages.gae import gae
from trainers.learner import TrainerSettings
from trainers.mini_batches import mini_batches
from trainers.ppo import explained_variance, train, whitened
from trainers.ppo_settings import ppo_settings_of
from trainers.update import policy_update
from trainers.update_settings import settings_of
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "model")


def make(root, model, ppo=None, **trainer):
    """A run of PPO with what `record_groups` records."""
    ppo = {"critic": {"lr": 0.01}} | (ppo or {})
    return make_run(root, model, **{"algorithm": "ppo", "max_staleness": 2 * STEPS, "ppo": ppo} | trainer)


def everything_after(folder, stops):
    """Weights of policy and critic when the trainer is started anew after each number of steps in `stops`."""
    trained_policy = after_stops(folder, stops)
    critic = trained_policy.value_function.state()["weights"]
    return trained_policy.policy.published() | {f"critic.{name}": tensor for name, tensor in critic.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"update": {"lr": 0.01, "epochs": 2, "mini_batches": 2}},
        {"ppo": {"critic": {"warmup": 2}}},
        {"reward_shuffle": True},
        {"update": {"lr": 0.01, "proximal": "loglinear", "loss": "minpro"}},
    ],
    ids=str,
)
def test_a_resumed_trainer_goes_on_exactly(tmp_path, model, options):
    runs_ = [make(tmp_path / name, model, **options) for name in ("straight", "interrupted")]
    for run in runs_:
        record_groups(run, range(2 * STEPS))
    straight, interrupted = everything_after(runs_[0], [STEPS]), everything_after(runs_[1], [1, 3, STEPS])
    assert all(torch.equal(straight[name], interrupted[name]) for name in straight)


def test_advantages_are_those_of_gae_over_what_the_critic_expected(tmp_path, model):
    folder = make(tmp_path / "run", model, ppo={"whiten": False, "gamma": 0.9, "lam": 0.8})
    record_groups(folder, range(4), rewards={2: [1.0, 1.0, 1.0]})
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(list(learner.arriving()))
        groups = list(learner.arriving())
        rows = [row for group in groups for own in group.rows for row in own]
        values = learner.trained_policy.values(rows)
        assert all(value[row.mask != 0].all() for row, value in zip(rows, values, strict=True))
        metrics = learner.train_step(groups)
        learner.settle()
        members = [member for group in groups for member in group.group.members]
        for row, value, member in zip(rows, values, members, strict=True):
            expected = gae(
                np.array([0, 0, 0, 0, 0, member.reward]), value[row.mask != 0].astype(np.float64), 0.9, 0.8
            )
            found = store.read(lambda conn, name=row.rollout_id: advantages.of_rollout(conn, name))
            assert [entry.value for entry in found] == pytest.approx(expected.tolist(), rel=1e-5)
            assert sum(entry.end - entry.start for entry in found) == 6
        assert metrics["signal"] == 1  # though one group's rewards are equal
        assert verify(store).findings == ()


def test_a_warm_up_that_leaves_the_policy_no_step_is_refused(tmp_path, model):
    folder = make(tmp_path / "run", model, steps=3, ppo={"critic": {"warmup": 3}})
    with pytest.raises(ConfigError, match=r"critic\.warmup = 3.*trainer\.steps is 3"):
        ppo_settings_of(folder.config())


def test_decoupled_ppo_clips_all_updates_of_a_batch_against_the_policy_that_it_was_begun_with(
    tmp_path, model
):
    """Against the same updates with proximal logprobs from plain forward passes in float64, before the
    first of them.
    """
    update = {
        "lr": 0.05,
        "loss": "decoupled_ppo",
        "proximal": "recompute",
        "corrections": [{"name": "mis", "cap": 5.0}],
        "epochs": 2,
        "mini_batches": 2,
    }
    folder = make(tmp_path / "run", model, update=update)
    record_groups(folder, range(4))
    with TraceStore.open(folder.store_url()) as store:
        learner, other = learner_of(folder, store), learner_of(folder, store)
        groups, hand, ppo = list(learner.arriving()), other.trained_policy, other.algorithm
        rows = [row for group in groups for own in group.rows for row in own]
        found = ppo._advantages(groups, hand.values(rows), None)
        given = whitened(rows, found)
        proximal = []
        for row in rows:
            logs = (
                hand.policy(torch.tensor(row.ids[None]).long())[0].detach().double().log_softmax(-1).numpy()
            )
            after = logs[np.arange(len(row.ids) - 1), row.ids[1:]]
            proximal.append(np.concatenate([[0.0], after]).astype(np.float32))
        metrics, cut = learner.train_step(groups), []
        for part in mini_batches(rows, learner.trained_policy.settings, [0, 0]):
            rest = (
                [rows[at] for at in part],
                [given[at] for at in part],
                hand.settings,
                [proximal[at] for at in part],
            )
            cut.append(policy_update(hand.policy, hand.optimizer, *rest).clip_fraction)
        learner.settle()
        assert cut[0] == 0 < max(cut)
        assert metrics["clip_fraction"] == pytest.approx(np.mean(cut))
        for one, expected in zip(
            learner.trained_policy.policy.parameters(), hand.policy.parameters(), strict=True
        ):
            torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)


def test_advantages_are_whitened_over_the_batch():
    random_ = np.random.default_rng(0)
    masks = [np.array([0, 1, 1, 0, 1]), np.array([0, 0, 1])]
    rows = [
        Row("r", "g", m.astype(np.int32), m.astype(np.int32), np.zeros(len(m), np.float32), m - 1)
        for m in masks
    ]
    given = [random_.normal(3.0, 7.0, len(m)).astype(np.float32) * m for m in masks]
    found = whitened(rows, given)
    flat = np.concatenate([values[row.mask != 0] for row, values in zip(rows, found, strict=True)])
    assert flat.mean() == pytest.approx(0, abs=1e-6)
    assert flat.std() == pytest.approx(1, rel=1e-6)
    assert not any(values[row.mask == 0].any() for row, values in zip(rows, found, strict=True))
    order = np.concatenate([values[row.mask != 0] for row, values in zip(rows, given, strict=True)]).argsort()
    assert (flat.argsort() == order).all()
    assert not any(
        values.any() for values in whitened(rows, [np.full(len(m), 2.0, np.float32) for m in masks])
    )


def test_the_explained_variance_is_one_of_the_truth_and_zero_of_a_constant():
    mask = np.array([0, 1, 1, 1], np.int32)
    rows = [Row("r", "g", mask, mask, np.zeros(4, np.float32), mask - 1)]
    truth = np.array([9.0, 1.0, 2.0, 4.0], np.float32)
    assert explained_variance(rows, [truth], [truth]) == 1
    assert explained_variance(rows, [np.full(4, 5.0, np.float32)], [truth]) == 0
    assert explained_variance(rows, [-truth], [truth]) < 0
    assert explained_variance(rows, [truth], [np.full(4, 5.0, np.float32)]) == 0


def test_a_batch_in_which_nothing_was_sampled_is_a_step_that_changes_nothing(tmp_path, model):
    folder = make(tmp_path / "run", model)
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        before = learner.trained_policy.policy.published()
        groups = [replace(group, rows=((),) * 3, credit=()) for group in learner.arriving()]
        metrics = learner.train_step(groups)
        assert (metrics["signal"], metrics["explained_variance"]) == (0, 0)
        assert all(
            torch.equal(before[name], tensor)
            for name, tensor in learner.trained_policy.policy.published().items()
        )
        learner.settle()


def test_while_the_critic_warms_up_the_policy_stays_and_the_ledger_says_so(tmp_path, model):
    folder = make(tmp_path / "run", model, ppo={"critic": {"lr": 0.01, "warmup": 1}})
    record_groups(folder, range(4))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        before = learner.trained_policy.policy.published()
        groups = list(learner.arriving())
        warming = learner.train_step(groups)
        learner.settle()
        assert "loss" not in warming
        assert warming["value_loss"] > 0
        assert all(
            torch.equal(before[name], tensor)
            for name, tensor in learner.trained_policy.policy.published().items()
        )
        named = groups[0].group.members[0].rollout_id
        assert [entry.value for entry in store.read(lambda conn: advantages.of_rollout(conn, named))] == [0.0]
        assert learner.train_step(list(learner.arriving()))["loss"]
        learner.settle()
        assert any(
            not torch.equal(before[name], tensor)
            for name, tensor in learner.trained_policy.policy.published().items()
        )
        assert store.read(lambda conn: ledger.steps(conn, learner.policy_id)) == [1, 2]


def test_several_updates_on_a_batch_are_one_training_in_the_ledger(tmp_path, model):
    folder = make(tmp_path / "run", model, update={"lr": 0.01, "epochs": 3, "mini_batches": 2})
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        metrics = learner.train_step(list(learner.arriving()))
        learner.settle()
        assert metrics["tokens"] == 18  # of an update; the batch has 36
        assert learner.trained_policy.optimizer.state_dict()["state"][0]["step"] == 6
        assert store.read(lambda conn: ledger.steps(conn, learner.policy_id)) == [1]
        assert verify(store).findings == ()


def test_the_critic_is_in_the_checkpoint_and_never_published(tmp_path, model):
    folder = make(tmp_path / "run", model)
    record_groups(folder, range(2))
    everything_after(folder, [1])
    assert checkpoint.load_newest(folder.checkpoints).critic["weights"]["head.weight"].any()
    _, weights = read_version(version_path(folder.versions, 1))
    assert not any("head" in name or "trunk" in name for name in weights)


def test_a_checkpoint_of_a_release_without_critics_is_read(tmp_path, model):
    folder = make_run(tmp_path / "run", model)
    record_groups(folder, range(2))
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(list(learner.arriving()))
        learner.settle()
    (path,) = folder.checkpoints.glob("step-000001/state.pt")
    values = torch.load(path, weights_only=False)
    del values["critic"]
    torch.save(values, path)
    assert checkpoint.load_newest(folder.checkpoints).critic is None


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"algorithm": "grpo", "group_size": 1, "ppo": {}}, "raise group_size, or set algorithm"),
        ({"algorithm": "grpo", "ppo": {"lam": 1.0}}, "the algorithm is grpo"),
        ({"stream": True}, "Set trainer.stream = false"),
        ({"periodic": True, "max_staleness": 0}, "leave trainer.periodic out"),
        ({"zero_signal": "refill"}, "trains on groups of equal rewards too"),
        ({"advantage": "rloo"}, "by GAE from its critic"),
        ({"update": {"baseline": "minimum_variance"}}, "PPO already subtracts its critic"),
        ({"update": {"epochs": 2, "proximal": "current"}}, "set proximal = "),
        (
            {"update": {"mini_batches": 2, "proximal": "ewma", "corrections": ["mis"]}},
            "set proximal = ",
        ),
        ({"update": {"proximal": "recompute"}}, "raise epochs or mini_batches"),
        ({"ppo": {"lambda": 1}}, "lam"),
        ({"ppo": {"critic": {"lr": 0}}}, "greater than 0"),
    ],
    ids=str,
)
def test_what_does_not_go_with_ppo_is_refused_with_the_reason(tmp_path, model, trainer, words):
    with pytest.raises(HarnessGymError, match=words):
        ppo_settings_of(make(tmp_path / "run", model, **trainer).config())


def test_its_quickstart_is_the_quickstart_but_for_the_trainer():
    grpo, ppo = (
        tomllib.loads((ROOT / "examples" / f"{name}.toml").read_text())
        for name in ("quickstart", "quickstart_ppo")
    )
    assert {key for key in grpo if grpo[key] != ppo[key]} == {"name", "trainer"}
    assert grpo.keys() == ppo.keys()
    assert settings_of(validate(RunConfig, ppo, "its quickstart")).epochs == 2


@pytest.mark.timeout(120)
def test_a_run_that_changes_its_number_of_processes_goes_on_as_one_that_does_not(tmp_path, model):
    stops = {
        "straight": [(1, 3)],
        "changing": [(1, 1), (2, 2), (1, 3)],
        "two": [(2, 3)],
        "resumed": [(2, 1), (2, 3)],
    }
    found = {}
    for name, each in stops.items():
        run = make(tmp_path / name, model, ppo={"critic": {"lr": 1e-3}}, update={"lr": 1e-3, "epochs": 2})
        record_groups(run, range(6))
        found[name] = after_processes(train, run, each)
    straight, changed = found["straight"], found["changing"]
    assert (straight.step, straight.version) == (changed.step, changed.version) == (3, 3)
    for ours, theirs in (
        (changed.weights, straight.weights),
        (changed.critic["weights"], straight.critic["weights"]),
    ):
        assert all(
            torch.allclose(ours[name], tensor, rtol=1e-3, atol=2e-4) for name, tensor in theirs.items()
        )
    two, resumed = found["two"], found["resumed"]
    assert all(torch.equal(resumed.weights[name], tensor) for name, tensor in two.weights.items())
    assert all(
        torch.equal(resumed.critic["weights"][name], tensor) for name, tensor in two.critic["weights"].items()
    )
    for index, values in two.critic["optimizer"]["state"].items():
        assert all(
            torch.equal(resumed.critic["optimizer"]["state"][index][name], value)
            for name, value in values.items()
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "options", [{"update": {"lr": 0.01, "epochs": 2}}, {"reuse": 1}, {"processes": 2}], ids=str
)
def test_a_trainer_killed_at_any_moment_ends_with_the_weights_of_one_that_was_not(tmp_path, model, options):
    steps = 6
    groups = 2 * steps - 2 * options.get("reuse", 0)  # some come again
    runs_ = [make(tmp_path / name, model, steps=steps, **options) for name in ("straight", "killed")]
    for run in runs_:
        record_groups(run, range(groups))
    train(TrainerSettings(run=runs_[0].root))
    assert train_with_kills(train, runs_[1], 3)
    straight, killed = (checkpoint.load_newest(run.checkpoints) for run in runs_)
    assert straight.step == killed.step == steps
    assert all(torch.equal(straight.weights[name], killed.weights[name]) for name in straight.weights)
    assert all(
        torch.equal(tensor, killed.critic["weights"][name])
        for name, tensor in straight.critic["weights"].items()
    )
    with TraceStore.open(runs_[1].store_url()) as store:
        run = store.read(runs.only)
        assert store.read(lambda conn: rollouts.group_states(conn, run.id, "train")) == {"consumed": groups}
        assert verify(store, run.id).findings == ()
