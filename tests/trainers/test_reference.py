"""Reference policies and teachers: what they score, what a run learns from them, and that it resumes exactly."""

import json
import shutil
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.store import TraceStore
from harnessgym.traces.trajectories import Row
from tests.support.engine_process import EngineProcess
from tests.trainers.conftest import fronted
from tests.trainers.recorded_run import STEPS, learner_of, make_run, record_groups, save_model
from tests.trainers.started_again import after_stops
from tests.trainers.test_trained_policy import as_leader
from tests.trainers.test_update import make_rows
from tests.trainers.together import together
from trainers.advantages.guided import divergences
from trainers.engine import EngineSettings
from trainers.engine.server import load_engine
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.policy import token_logprobs
from trainers.reference import ReferenceScores
from trainers.trained_policy import TrainedPolicy
from trainers.update_settings import settings_of

ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.5]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a policy, and of larger teachers with the same tokens, one with a padded vocabulary."""
    root = tmp_path_factory.mktemp("models")
    save_model(root / "policy")
    torch.manual_seed(5)
    for name, vocabulary in (("teacher", 40), ("unpadded", 32)):
        teacher = NativePolicy(NativeConfig(vocabulary, 24, 32, 2, 2, 1, 8, max_position_embeddings=64))
        for parameter in teacher.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.4)
        save_policy(teacher, root / name)
    words = {f"w{number}": number for number in range(32)}
    for name in ("policy", "teacher", "unpadded"):
        Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(root / name / "tokenizer.json"))
    return root


def run_of(root, folders, **trainer):
    return make_run(root, folders / "policy", **{"max_staleness": 2 * STEPS} | trainer)


def trained(config):
    return TrainedPolicy(config)


def moved(trained_policy):
    """The policy after a step, so that its weights are not those of the start."""
    scores = trained_policy.reference_scores(make_rows(1))
    trained_policy.update(make_rows(1), ADVANTAGES, references=scores)


@torch.no_grad()
def logprobs_of(folder, row):
    ids = torch.from_numpy(row.ids[None]).long()
    return np.where(row.mask, token_logprobs(load_policy(folder)(ids), ids)[0].numpy(), 0)


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["weights", "adapters"])
def test_the_start_is_scored_whatever_the_policy_has_learnt(tmp_path, folders, lora):
    update = {"lr": 0.05, "kl": {"coefficient": 0.1}}
    config = run_of(tmp_path / "run", folders, update=update, **({"lora": lora} if lora else {})).config()
    trained_policy = trained(config)
    moved(trained_policy)
    state = trained_policy.state()[0]
    for row, found in zip(make_rows(2), trained_policy.reference_logprobs(make_rows(2)), strict=True):
        np.testing.assert_allclose(found, logprobs_of(folders / "policy", row), atol=1e-5)
    assert all(torch.equal(tensor, state[name]) for name, tensor in trained_policy.state()[0].items())
    assert all(each.requires_grad == (lora is None or ".lora_" in name) for name, each in
               trained_policy.policy.named_parameters())  # fmt: skip


def test_a_model_of_its_own_is_scored_at_the_update_s_temperature(tmp_path, folders):
    update = {"kl": {"coefficient": 0.1, "reference": {"name": "model", "path": str(folders / "teacher")}}}
    trained_policy = trained(run_of(tmp_path / "run", folders, update=update).config())
    for row, found in zip(make_rows(2), trained_policy.reference_logprobs(make_rows(2)), strict=True):
        np.testing.assert_allclose(found, logprobs_of(folders / "teacher", row), atol=1e-5)


def test_an_average_follows_the_policy_and_a_reset_becomes_it(tmp_path, folders):
    def average(**settings):
        reference = {"name": "average", **settings}
        update = {"lr": 0.05, "kl": {"coefficient": 0.1, "reference": reference}}
        return trained(run_of(tmp_path / str(settings), folders, update=update).config())

    start = load_policy(folders / "policy").published()
    for settings, expected in ((("decay", 0.75), 0.25), (("every", 2), 0.0), (("decay", 0.0), 1.0)):
        trained_policy = average(**dict([settings]))
        moved(trained_policy)
        trained_policy.end_batch()
        now = trained_policy.policy.published()
        held = trained_policy._reference._held
        with held.in_place():
            found = trained_policy.policy.published()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, torch.lerp(start[name], now[name], expected))


CASES = {
    "kl to the start": {"kl": {"coefficient": 0.1}},
    "kl in the reward": {"kl": {"coefficient": 0.1, "use": "reward"}},
    "kl to an average": {"kl": {"coefficient": 0.1, "estimator": "k2", "reference": "average"}},
    "several steps": {"epochs": 2, "mini_batches": 2, "kl": {"coefficient": 0.1}},
    "recomputed": {"epochs": 2, "proximal": "recompute", "loss": "decoupled_ppo", "corrections": ["mis"]},
    "distilled": {"distillation": {"teacher": {"name": "model"}}},
    "distilled alone": {"distillation": {"teacher": {"name": "model"}, "rewards": False}},
    "distilled whole": {"distillation": {"teacher": {"name": "model"}, "tokens": "full"}},
    "distilled whole alone": {
        "distillation": {"teacher": {"name": "model"}, "tokens": "full", "rewards": False}
    },
    "distilled top": {
        "distillation": {"teacher": {"name": "model"}, "tokens": 5},
        "kl": {"coefficient": 0.1},
    },
}


def update_of(case, folders):
    update = json.loads(json.dumps(CASES[case])) | {"lr": 0.02}
    if "distillation" in update:
        update["distillation"]["teacher"]["path"] = str(folders / "teacher")
    return update


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_started_again_ends_with_the_same_bits(tmp_path, folders, case, algorithm):
    found = []
    for name, stops in (("straight", (4,)), ("stopped", (1, 3, 4))):
        folder = run_of(tmp_path / name, folders, algorithm=algorithm, update=update_of(case, folders))
        record_groups(folder, range(2 * STEPS))
        found.append(after_stops(folder, stops).policy.published())
    start = load_policy(folders / "policy").published()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert any(not torch.equal(tensor, start[name]) for name, tensor in found[0].items())


def steps_of(folder, groups=2 * STEPS, rewards=None):
    """The metrics of a run's steps."""
    record_groups(folder, range(groups), rewards=rewards)
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        metrics = [learner.train_step(list(learner.arriving())) for _ in range(STEPS)]
        learner.settle()
    return metrics


def drawn_by(policy, count, seed):
    """Rows that a policy samples, six tokens behind one prompt each."""
    draw, rows = torch.Generator().manual_seed(seed), []
    ids = torch.tensor([[3, 1, 4]] * count)
    with torch.no_grad():
        for _ in range(6):
            chances = policy(ids)[:, -1].softmax(-1)
            ids = torch.cat((ids, torch.multinomial(chances, 1, generator=draw)), dim=1)
        logprobs = token_logprobs(policy(ids), ids).numpy()
    mask = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1], np.int32)
    for index in range(count):
        own = ids[index].numpy().astype(np.int32)
        rows.append(Row(f"r{index}", "g", own, mask, logprobs[index] * mask, mask - 1))
    return rows


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_penalty_holds_the_policy_at_the_start(tmp_path, folders, estimator):
    """Tokens are rewarded at random, which moves a policy that nothing holds."""
    far = {}
    for coefficient in (1e-6, 20.0):
        update = {"lr": 0.01, "kl": {"coefficient": coefficient, "estimator": estimator}}
        trained_policy = trained(run_of(tmp_path / str(coefficient), folders, update=update).config())
        for step in range(12):
            rows = drawn_by(trained_policy.policy, 32, step)
            metrics = trained_policy.update(rows, [float(row.ids[3] % 2) - 0.5 for row in rows])
            assert step or metrics.reference_kl == pytest.approx(0, abs=1e-9)
        far[coefficient] = metrics.reference_kl
    assert 0 < far[20.0] < far[1e-6] / 3


@pytest.mark.parametrize("tokens", ["sampled", "full", 8])
def test_a_teacher_is_learnt_from(tmp_path, folders, tokens):
    distillation = {"teacher": {"name": "model", "path": str(folders / "teacher")}, "tokens": tokens}
    update = {"lr": 0.01, "distillation": distillation}
    trained_policy = trained(run_of(tmp_path / "run", folders, update=update).config())
    found = [divergence_from_teacher(trained_policy, folders, drawn_by(trained_policy.policy, 64, 99))]
    for step in range(20):
        rows = drawn_by(trained_policy.policy, 64, step)
        advantages = [0.0] * len(rows)
        if tokens == "sampled":
            advantages = [-each for each in divergences(rows, trained_policy.teacher_logprobs(rows))]
        trained_policy.update(rows, advantages)
    found.append(divergence_from_teacher(trained_policy, folders, drawn_by(trained_policy.policy, 64, 99)))
    assert found[1] < 0.5 * found[0]


@pytest.mark.parametrize("tokens", ["sampled", "full", 8])
def test_groups_of_equal_rewards_are_trained_with_a_teacher(tmp_path, folders, tokens):
    teacher = {"name": "model", "path": str(folders / "teacher")}
    for stream in (False, True):
        update = {"lr": 0.02, "distillation": {"teacher": teacher, "tokens": tokens}}
        folder = run_of(tmp_path / str(stream), folders, update=update, stream=stream)
        metrics = steps_of(folder, rewards={number: [1.0] * 3 for number in range(2 * STEPS)})
        assert all(
            each["signal"] == 1 and each["teacher_kl"] != 0 and each["tokens"] == 36 for each in metrics
        )


@torch.no_grad()
def divergence_from_teacher(trained_policy, folders, rows):
    """KL(policy, teacher) over the whole vocabulary, mean over trained positions."""
    teacher, found = load_policy(folders / "teacher"), []
    for row in rows:
        ids = torch.from_numpy(row.ids[None]).long()
        own, other = (each(ids)[0, :-1, :32].log_softmax(-1) for each in (trained_policy.policy, teacher))
        found.append((own.exp() * (own - other)).sum(-1)[torch.from_numpy(row.mask[1:]) != 0])
    return float(torch.cat(found).mean())


def test_the_gradient_of_whole_distributions_is_autograd_s_own(tmp_path, folders):
    """Also where a rollout's rows need several passes, for a loss of whole rollouts."""
    distillation = {"teacher": {"name": "model", "path": str(folders / "teacher")}, "tokens": "full"}
    rows, found = make_rows(3), []
    for tokens, loss in ((10_000, "dapo"), (1, "dapo"), (1, "gspo")):
        update = {
            "distillation": distillation,
            "micro_batch_tokens": tokens,
            "loss": loss,
            "max_grad_norm": 1e9,
        }
        trained_policy = trained(run_of(tmp_path / f"{tokens} {loss}", folders, update=update).config())
        trained_policy.update(rows, [0.0] * 5)
        found.append([each.grad.clone() for each in trained_policy.policy.parameters()])
    policy, teacher = load_policy(folders / "policy"), load_policy(folders / "teacher")
    total = []
    for row in rows:
        ids = torch.from_numpy(row.ids[None]).long()
        own, other = (each(ids)[0, :-1, :32].log_softmax(-1) for each in (policy, teacher))
        total.append((own.exp() * (own - other)).sum(-1)[torch.from_numpy(row.mask[1:]) != 0])
    torch.cat(total).mean().backward()
    for gradients in found:
        for one, parameter in zip(gradients, policy.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("tokens", ["sampled", "full", 5])
def test_without_rewards_only_the_teacher_counts(tmp_path, folders, tokens, algorithm):
    found = []
    for number, rewards in enumerate(([0.0, 0.0, 0.0], [1.0, 0.0, 1.0])):
        teacher = {"name": "model", "path": str(folders / "teacher")}
        update = {"lr": 0.02, "distillation": {"teacher": teacher, "tokens": tokens, "rewards": False}}
        folder = run_of(tmp_path / str(number), folders, algorithm=algorithm, update=update)
        record_groups(folder, range(2), rewards=dict.fromkeys(range(2), rewards))
        found.append(after_stops(folder, (1,)).policy.published())
    start = load_policy(folders / "policy").published()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert any(not torch.equal(tensor, start[name]) for name, tensor in found[0].items())


def test_a_penalty_in_the_reward_makes_no_signal_of_its_own(tmp_path, folders):
    for number, (rewards, tokens) in enumerate((([1.0] * 3, 0), ([1.0, 0.0, 1.0], 36))):
        update = {"lr": 0.02, "kl": {"coefficient": 0.1, "use": "reward", "reference": "average"}}
        folder = run_of(tmp_path / str(number), folders, update=update)
        metrics = steps_of(folder, rewards=dict.fromkeys(range(2 * STEPS), rewards))
        assert {each.get("tokens", 0) for each in metrics} == {tokens}
        assert all(each["signal"] == bool(tokens) for each in metrics)


def test_an_estimator_over_the_batch_keeps_its_scale_beside_a_teacher_in_the_loss(tmp_path, folders):
    teacher = {"name": "model", "path": str(folders / "teacher")}
    for tokens, kept in (("full", True), ("sampled", False)):
        folder = run_of(
            tmp_path / tokens, folders, advantage="gdpo", advantage_settings={"weights": {"reward": 1.0}},
            update={"distillation": {"teacher": teacher, "tokens": tokens}},
        )  # fmt: skip
        if kept:
            with TraceStore.open(folder.store_url()) as store:
                assert hasattr(learner_of(folder, store).algorithm.estimator, "over_batch")
        else:
            with pytest.raises(ConfigError, match="scales advantages over the batch"):
                settings_of(folder.config())


def one_step(trained_policy):
    metrics = trained_policy.update(make_rows(1), ADVANTAGES)
    trained_policy.end_batch()
    again = trained_policy.update(make_rows(2), ADVANTAGES)
    return metrics.as_dict(), again.as_dict(), trained_policy.state()[0], trained_policy.reference_state()


@pytest.mark.parametrize("case", ["kl to the start", "kl to an average", "distilled whole", "distilled top"])
def test_two_processes_take_the_steps_of_one(tmp_path, folders, case):
    config = run_of(tmp_path / "run", folders, update=update_of(case, folders)).config()
    (*metrics, weights, state), follower = together(tmp_path / "two", 2, as_leader, config, one_step)
    *expected, its_weights, its_state = one_step(trained(config))
    assert follower is None
    for found, known in zip(metrics, expected, strict=True):
        assert found == pytest.approx(known, rel=1e-3, abs=1e-6)
    for name, tensor in its_weights.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=1e-3)
    assert (state or {}).keys() == (its_state or {}).keys()


@contextmanager
def engine_of(folder):
    settings = EngineSettings(model=folder, port=0, served_model_name="teacher", max_batch=4)
    with fronted(load_engine(settings), settings) as url:
        yield url


@pytest.mark.parametrize("tokens", ["sampled", 6])
def test_an_engine_scores_as_the_model_that_it_serves(tmp_path, folders, tokens):
    rows = make_rows(4)
    rows[1].mask[:] = 0  # nothing to ask for

    def scores(teacher, name):
        update = {"distillation": {"teacher": teacher, "tokens": tokens}}
        trained_policy = trained(run_of(tmp_path / name, folders, update=update).config())
        if tokens == "sampled":
            return trained_policy.teacher_logprobs(rows)
        return [each.logprobs for each in trained_policy.reference_scores(rows).top]

    local = scores({"name": "model", "path": str(folders / "unpadded")}, "local")
    with engine_of(folders / "unpadded") as url:
        served = scores({"name": "engine", "url": url}, "served")
    for one, other in zip(local, served, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    with pytest.raises(TrainerError, match=r"does not score a row.*Start it, and then the run again"):
        scores({"name": "engine", "url": url}, "gone")


def test_an_engine_that_hangs_is_an_error_and_no_score(tmp_path, folders):
    with EngineProcess() as engine:
        engine.signal(signal.SIGSTOP)
        teacher = {"name": "engine", "url": engine.address, "timeout_s": 0.5}
        update = {"distillation": {"teacher": teacher}}
        trained_policy = trained(run_of(tmp_path / "run", folders, update=update).config())
        with pytest.raises(TrainerError, match=r"does not score a row.*ReadTimeout"):
            trained_policy.teacher_logprobs(make_rows(4))


def test_an_engine_with_tokens_that_the_policy_lacks_is_refused(tmp_path, folders):
    with engine_of(folders / "teacher") as url:
        update = {"distillation": {"teacher": {"name": "engine", "url": url}, "tokens": 20}}
        trained_policy = trained(run_of(tmp_path / "run", folders, update=update).config())
        with pytest.raises(TrainerError, match="and the policy has 32 tokens"):
            trained_policy.reference_scores(make_rows(4))


def test_a_row_that_an_engine_refuses_is_an_error_with_its_answer(tmp_path, folders):
    with engine_of(folders / "teacher") as url:
        update = {"distillation": {"teacher": {"name": "engine", "url": url}}}
        trained_policy = trained(run_of(tmp_path / "run", folders, update=update).config())
        row = make_rows(1)[0]
        row.ids[1] = 4_000
        with pytest.raises(TrainerError, match="did not score a row"):
            trained_policy.teacher_logprobs([row])


def test_a_version_of_another_run_is_a_reference_and_a_teacher(tmp_path, folders):
    other = run_of(tmp_path / "other", folders)
    steps_of(other)
    other.identity_path.touch()
    named = {"name": "version", "run": str(other.root), "version": 2}
    for update in ({"kl": {"coefficient": 0.1, "reference": named}},
                   {"distillation": {"teacher": named, "tokens": "full"}}):  # fmt: skip
        trained_policy = trained(run_of(tmp_path / next(iter(update)), folders, update=update).config())
        reference = trained_policy._reference or trained_policy._teacher
        found = reference.logprobs(make_rows(2))
        assert all(np.isfinite(each).all() for each in found)
        start = [logprobs_of(folders / "policy", row) for row in make_rows(2)]
        assert max(float(np.abs(a - b).max()) for a, b in zip(found, start, strict=True)) > 1e-3
        trained_policy.update(make_rows(1), ADVANTAGES)


def test_a_run_whose_start_was_changed_does_not_resume(tmp_path, folders):
    shutil.copytree(folders / "policy", tmp_path / "model")
    folder = make_run(tmp_path / "run", tmp_path / "model", max_staleness=9,
                      update={"lr": 0.02, "kl": {"coefficient": 0.1}})  # fmt: skip
    record_groups(folder, range(2))
    after_stops(folder, (1,))
    torch.manual_seed(99)
    save_policy(
        NativePolicy(NativeConfig(32, 16, 32, 1, 2, 1, 8, max_position_embeddings=64)), tmp_path / "model"
    )
    with TraceStore.open(folder.store_url()) as store, pytest.raises(TrainerError, match="Restore them"):
        learner_of(folder, store)


def test_scores_are_needed_where_the_loss_has_a_term_for_them(tmp_path, folders):
    trained_policy = trained(run_of(tmp_path / "run", folders, update={"kl": {"coefficient": 0.1}}).config())
    with pytest.raises(TrainerError, match="kl needs the logprobs"):
        trained_policy.update(make_rows(1), ADVANTAGES, references=ReferenceScores())


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"update": {"kl": {"coefficient": 0}}}, "greater than 0"),
        ({"update": {"kl": {"coefficient": 1, "reference": "yesterday"}}}, "reference"),
        ({"update": {"kl": {"coefficient": 1, "use": "reward", "estimator": "k3"}}}, "subtracts k1"),
        ({"lora": {"rank": 2}, "update": {"kl": {"coefficient": 1, "reference": "average"}}}, "take 'start'"),
        (
            {
                "update": {
                    "kl": {"coefficient": 1, "reference": {"name": "version", "run": "no", "version": 1}}
                }
            },
            "no folder of a run",
        ),
        (
            {"update": {"kl": {"coefficient": 1, "reference": {"name": "model", "path": "no"}}}},
            "config.json is missing",
        ),
        (
            {
                "update": {
                    "distillation": {"teacher": {"name": "engine", "url": "http://x"}, "tokens": "full"}
                }
            },
            "report no whole vocabulary",
        ),
        (
            {"update": {"distillation": {"teacher": {"name": "engine", "url": "http://x"}, "tokens": 21}}},
            "20 tokens at most",
        ),
        (
            {
                "advantage": "gdpo",
                "advantage_settings": {"weights": {"a": 1.0}},
                "update": {"kl": {"coefficient": 1, "use": "reward"}},
            },
            "scales advantages over the batch",
        ),
        (
            {"advantage": "m_grpo", "update": {"kl": {"coefficient": 1, "use": "reward"}}},
            "puts its rewards together from channels",
        ),
        (
            {
                "success_pool": 1,
                "update": {"distillation": {"teacher": {"name": "engine", "url": "http://x"}}},
            },
            "with a teacher every group",
        ),
        (
            {
                "advantage": "reward",
                "update": {
                    "loss": "reinforce",
                    "proximal": "current",
                    "baseline": "minimum_variance",
                    "kl": {"coefficient": 1},
                },
            },
            "one step from rewards alone",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path, folders, trainer, words):
    with pytest.raises(ConfigError, match=words):
        settings_of(run_of(tmp_path / "run", folders, **trainer).config())


def test_a_teacher_with_other_tokens_is_refused_by_the_first_that_differs(tmp_path, folders):
    shutil.copytree(folders / "teacher", tmp_path / "other")
    words = {f"w{number}": number for number in range(31)} | {"else": 31}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(tmp_path / "other" / "tokenizer.json"))
    update = {"distillation": {"teacher": {"name": "model", "path": str(tmp_path / "other")}}}
    with pytest.raises(ConfigError, match=r"'w31' is 31 in .*, and missing there"):
        settings_of(run_of(tmp_path / "run", folders, update=update).config())
