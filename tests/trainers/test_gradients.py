"""Scores of tokens that nobody sampled, and what they say of a turn."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from environments.lookup import LookupTasks
from harnessgym.errors import ConfigError, TrainerError
from harnessgym.store import TraceStore, rollouts, runs
from tests.trainers.recorded_lookup import Player, Recorder
from tests.trainers.recorded_run import learner_of
from tests.trainers.test_update import CONFIG, make_policy
from trainers.advantages.igpo import InformationGain
from trainers.advantages.steps import branches
from trainers.batch import load_group
from trainers.gradients import backpropagate
from trainers.policy import token_logprobs
from trainers.scoring import mean_logprobs
from trainers.update_settings import UpdateSettings


def test_a_gradient_goes_back_as_torch_takes_it_to_the_bit():
    def gradients(back):
        torch.manual_seed(0)
        layer = torch.nn.Linear(30, 9)
        back(layer(torch.randn(30)).log_softmax(0), torch.randn(9) / 3)
        return [weight.grad for weight in layer.parameters()]

    assert all(map(torch.equal, gradients(backpropagate), gradients(torch.Tensor.backward)))


@torch.no_grad()
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_scores_are_those_of_a_forward_of_each_text_alone(micro_batch_tokens):
    policy, random = make_policy(), np.random.default_rng(0)
    texts = [random.integers(0, CONFIG.vocab_size, length).astype(np.int32) for length in (9, 4, 30, 9)]
    tails, settings = [3, 1, 29, 0], UpdateSettings(temperature=0.7, micro_batch_tokens=micro_batch_tokens)
    found = mean_logprobs(policy, texts, tails, settings)
    for text, tail, score in zip(texts, tails, found, strict=True):
        ids = torch.from_numpy(text.astype(np.int64))[None]
        alone = token_logprobs(policy(ids), ids, 0.7)[0, len(text) - tail :]
        assert score == pytest.approx(float(alone.mean()) if tail else 0.0, abs=1e-5)


def test_of_a_text_that_is_too_long_the_end_counts():
    policy, limit = make_policy(), CONFIG.max_position_embeddings
    text = np.arange(limit + 5, dtype=np.int32) % CONFIG.vocab_size
    settings = UpdateSettings()
    assert mean_logprobs(policy, [text], [2], settings) == mean_logprobs(policy, [text[5:]], [2], settings)


@pytest.fixture
def played(tmp_path):
    """A recorded batch of the shipped task that was trained with IGPO, and its store."""
    player = Player()
    recorder = Recorder(tmp_path / "run", player, advantage="igpo", groups_per_step=1, update={"lr": 1e-3})
    recorder.step()
    recorder.close()
    player.close()
    return recorder.folder


def groups_of(store):
    (group_id,) = [
        row[0] for row in store.read(lambda conn: conn.exec_driver_sql("SELECT id FROM groups").all())
    ]
    return load_group(store, store.read(lambda conn: rollouts.group(conn, group_id)))


def test_a_turn_gains_what_the_right_answer_becomes_likelier_after_it(played):
    with TraceStore.open(played.store_url()) as store:
        learner, group = learner_of(played, store), groups_of(store)
        config = played.config()
        gains = InformationGain.of_run("answer", "", config, store, learner.trained_policy)(group.scored)
        name = store.read(lambda conn: runs.task_key(conn, group.group.task_id))
        assert name == "lookup/train/0000"
        gold = gold_of(config, name)
        for item, per_branch in zip(group.scored, gains, strict=True):
            for row, turns, own in zip(item.rows, branches(item.rows), per_branch, strict=True):
                chances = [
                    np.exp(chance(learner.trained_policy.policy, row.ids[: turn.start], gold))
                    for turn in turns
                ]
                np.testing.assert_allclose(own, np.diff(chances), atol=1e-5)
        tools = [own[1] for per_branch in gains for own in per_branch if len(own) > 1]
        assert max(tools) > 0.1  # the right tool was called by somebody, and its result can be copied


@torch.no_grad()
def chance(policy, before, gold):
    ids = torch.tensor([[*before.tolist(), *gold]])
    return float(token_logprobs(policy(ids), ids)[0, len(before) :].mean())


def gold_of(config, name):
    (task,) = [task for task in LookupTasks().tasks("train") if task.id == name]
    tokenizer = Tokenizer.from_file(f"{config.policy.path}/tokenizer.json")
    return tokenizer.encode(task.metadata["answer"], add_special_tokens=False).ids


def test_a_task_without_a_right_answer_is_named(played):
    with TraceStore.open(played.store_url()) as store:
        learner, group = learner_of(played, store), groups_of(store)
        asked = InformationGain.of_run("solution", "", played.config(), store, learner.trained_policy)
        with pytest.raises(TrainerError, match="lookup/train/0000 has no text under 'solution'"):
            asked(group.scored)
    with pytest.raises(ConfigError, match=r"only the run.s trainer has"):
        InformationGain.of_run("answer", "", played.config(), None, None)


def test_shuffled_gains_are_the_same_ones_elsewhere(played):
    with TraceStore.open(played.store_url()) as store:
        learner, group = learner_of(played, store), groups_of(store)
        config = played.config()
        control = config.model_copy(
            update={"trainer": config.trainer.model_copy(update={"reward_shuffle": True})}
        )
        one, other = (
            InformationGain.of_run("answer", "", each, store, learner.trained_policy)(group.scored)
            for each in (config, control)
        )
        flat, moved = (np.concatenate([own for each in found for own in each]) for found in (one, other))
        assert sorted(flat) == sorted(moved)
        assert not np.array_equal(flat, moved)
        assert [[len(own) for own in each] for each in one] == [[len(own) for own in each] for each in other]


def test_text_before_the_answer_is_no_part_of_what_is_scored(played):
    with TraceStore.open(played.store_url()) as store:
        group, asked = groups_of(store), []

        def score(texts, tails):
            asked.extend(zip(texts, tails, strict=True))
            return [0.0] * len(texts)

        InformationGain(lambda _: (5, 6), score, before=(7, 8, 9))(group.scored)
    assert asked
    assert all(text[-5:].tolist() == [7, 8, 9, 5, 6] and tail == 2 for text, tail in asked)
