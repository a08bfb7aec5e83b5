"""One contract for all runners: with the native policy and with transformers' caches, the engine keeps its
promises.
"""

from functools import cache

import numpy as np
import pytest
import torch

from harnessgym.errors import PolicyError
from tests.trainers.policies.families import tiny_model
from tests.trainers.test_engine import Ask
from trainers.engine.engine import build_engine
from trainers.engine.rows import truncate
from trainers.engine.runners.native import NativeRunner
from trainers.engine.runners.transformers import TransformersRunner
from trainers.engine.sequence import SequenceSampling
from trainers.policies.loading import load_served

FAMILIES = [
    "native",
    "qwen2",  # biases
    "qwen3_moe",  # experts
    "mistral",  # a window
    "gemma3",  # a window in every other layer
    "gpt_oss",  # sinks, experts and a window
    "deepseek_v3",  # latent attention
    "qwen3_5",  # linear attention in every other layer
    "granitemoehybrid",  # a state space in every other layer
    "mamba2",  # state spaces alone
    "phi3_longrope",  # other positions for rows of more than 16 tokens
]
CROPPED = {"native", "qwen2", "qwen3_moe", "deepseek_v3", "phi3_longrope"}
"""Their caches can be cut at any length."""


class HookedAsk(Ask):
    """An ask that does something in the engine's thread when its first token is there."""

    def __init__(self, engine, prompt, sampling, on_start, **options):
        self.on_start = on_start
        super().__init__(engine, prompt, sampling, **options)

    def take(self, chunk):
        if not self.chunks and self.on_start:
            self.on_start()
        super().take(chunk)


class Served:
    """A family's engine, and plain transformers with the same weights."""

    def __init__(self, name, folders):
        self.name = name
        self.model, folder = folders(name)
        self.policy = load_served(folder)
        self.engine = build_engine(self.policy, max_batch=4, cached_sequences=4)
        self.engine.start()

    def ask(self, prompt, count=12, *, salt="", on_start=None, **options):
        sampling = SequenceSampling(count, **options)
        return HookedAsk(self.engine, prompt, sampling, on_start, salt=salt)

    def check(self, ask, model=None, where=True):
        """The ask's logprobs, or those of some tokens, are those of plain transformers without a cache."""
        expected = recomputed(model or self.model, ask.prompt, ask.ids, ask.sampling)
        different = (expected - torch.tensor(ask.logprobs)).abs()
        assert (different < 1e-4).numpy()[where].all()


@torch.no_grad()
def recomputed(model, prompt, ids, sampling):
    """Logprob of each token in plain transformers, without a cache."""
    whole = torch.tensor([[*prompt, *ids]])
    start = len(prompt)
    if model.config.model_type == "phi3":  # positions depend on how long the row was
        scores = torch.stack([model(whole[:, :end]).logits[0, -1] for end in range(start, whole.shape[1])])
    else:
        scores = model(whole).logits[0, start - 1 : -1]
    scores = truncate(
        scores / sampling.temperature,
        torch.full((len(ids),), sampling.top_k),
        torch.full((len(ids),), sampling.top_p),
    )
    return scores.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def prompts(*lengths, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 97, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A family's model with random weights of a seed, and a folder with it."""

    @cache
    def made(name, seed=0):
        model = tiny_model("qwen3" if name == "native" else name, seed)
        model.save_pretrained(folder := tmp_path_factory.mktemp(name))
        return model, folder

    return made


@pytest.fixture(params=FAMILIES)
def served(request, folders):
    made = Served(request.param, folders)
    yield made
    made.engine.close()
    assert made.engine.failure is None


def test_the_runner_is_the_one_for_the_policy_and_the_slower_one_says_so(served):
    runner = served.engine.runner
    assert isinstance(runner, NativeRunner if served.name == "native" else TransformersRunner)
    assert ("slower than our own module" in runner.notice()) == (served.name != "native")
    assert ("one by one" in runner.notice()) == (served.name == "phi3_longrope")


def test_logprobs_are_those_of_plain_transformers(served):
    how = [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 12}, {}, {"temperature": 1.5}, {}]
    asks = [
        served.ask(prompt, 12, seed=seed, **each)
        for seed, (prompt, each) in enumerate(zip(prompts(5, 9, 14, 21, 30), how, strict=True))
    ]
    for ask in asks:
        assert len(ask.wait().ids) == 12
        served.check(ask)


def test_tokens_do_not_depend_on_the_rest_of_the_batch(served):
    starts = prompts(6, 13, 24)
    alone = [served.ask(prompt, 14, seed=seed).wait() for seed, prompt in enumerate(starts)]
    crowd = [
        served.ask(prompt, 4 + 5 * n, seed=90 + n) for n, prompt in enumerate(prompts(11, 3, 17, seed=8))
    ]
    together = [served.ask(prompt, 14, seed=seed, salt="new") for seed, prompt in enumerate(starts)]
    for ask, other in zip(together, alone, strict=True):
        assert ask.wait().ids == other.ids
        assert np.allclose(ask.logprobs, other.logprobs, atol=1e-4)
    assert [len(ask.wait().ids) for ask in crowd] == [4, 9, 14]


def test_a_conversation_goes_on_from_what_is_computed(served):
    first = served.ask(prompts(15)[0], 12, seed=1).wait()
    longer = first.prompt + first.ids + prompts(6, seed=2)[0]
    again = served.ask(longer, 8, seed=2).wait()
    served.check(again)
    assert again.chunks[-1].cached_tokens == 26
    other = served.ask(longer, 8, seed=2, salt="other").wait()
    assert other.chunks[-1].cached_tokens == 0
    assert other.ids == again.ids


def test_equal_prompts_are_computed_once(served):
    asks = [served.ask(prompts(25)[0], 8, seed=seed) for seed in range(4)]
    assert sorted(ask.wait().chunks[-1].cached_tokens for ask in asks) == [0, 24, 24, 24]
    for ask in asks:
        served.check(ask)


def test_a_prompt_that_leaves_another_one_midway_shares_what_its_cache_can_give(served):
    first = served.ask(prompts(25)[0], 12, seed=1).wait()
    ask = served.ask(first.prompt[:20] + prompts(9, seed=3)[0], 8, seed=2).wait()
    served.check(ask)
    assert ask.chunks[-1].cached_tokens == (20 if served.name in CROPPED else 0)


def test_many_conversations_keep_their_logprobs_while_rows_are_evicted(served):
    draw = np.random.default_rng(4)
    talks = prompts(*[9] * 7)
    for turn in range(3):
        asks = [served.ask(talk, int(draw.integers(1, 9)), seed=turn) for talk in talks]
        for ask in asks:
            served.check(ask.wait())
        talks = [ask.prompt + ask.ids + draw.integers(3, 97, 3).tolist() for ask in asks]
    assert served.engine.counters.prefix_hits > 0


@pytest.mark.parametrize("mode", ["reprefill", "finish"])
def test_each_token_is_from_the_version_that_it_names(served, mode, folders):
    new, folder = folders(served.name, 1)
    weights = load_served(folder).published()
    done = []

    def install():
        done.append(served.engine.install(weights, version=1, mode=mode))

    asks = [served.ask(prompt, 40, seed=seed) for seed, prompt in enumerate(prompts(7, 12))]
    asks.append(served.ask(prompts(20)[0], 40, seed=2, on_start=install))
    assert asks[-1].started.wait(60)
    late = served.ask(asks[0].prompt, 5, seed=9)
    done[0].result(60)
    for ask in asks:
        versions = np.array(ask.wait().versions)
        assert set(versions) <= ({0, 1} if mode == "reprefill" else {0})
        assert (np.diff(versions) >= 0).all()
        for version, model in enumerate((served.model, new)):
            served.check(ask, model, versions == version)
    assert set(asks[-1].versions) == ({0, 1} if mode == "reprefill" else {0})
    assert set(late.wait().versions) == {1}
    assert late.chunks[-1].cached_tokens in (0, 6)  # 6: of what runs, computed again under the new weights
    served.check(late, new)


def test_prompts_are_scored_beside_others(served):
    prompt = prompts(23)[0]
    served.ask(prompt, 3).wait()
    other = served.ask(prompts(9, seed=5)[0], 20, seed=1)
    ask = served.ask(prompt, 6, seed=2, temperature=0.3, prompt_logprobs=2).wait()
    served.check(other.wait())
    served.check(ask)
    with torch.no_grad():
        scores = served.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert len(ask.chunks[-1].prompt_scores) == 22
    for position, score in enumerate(ask.chunks[-1].prompt_scores):
        assert score.token == prompt[position + 1]
        assert abs(score.logprob - float(scores[position, score.token])) < 1e-4
        assert list(score.alternatives) == scores[position].topk(2).indices.tolist()


def test_aborted_sequences_leave_the_others_as_they_are(served):
    starts = prompts(8, 14, 19)
    alone = served.ask(starts[1], 40, seed=1).wait()
    asks = [served.ask(prompt, 40, seed=seed, salt="b") for seed, prompt in enumerate(starts)]
    assert asks[0].started.wait(60)
    served.engine.abort(asks[0].sequence)
    assert asks[0].wait().finish == ("abort", None)
    assert [len(ask.wait().ids) for ask in asks[1:]] == [40, 40]
    assert asks[1].ids == alone.ids
    served.check(asks[2])


def test_weights_that_do_not_fit_leave_the_engine_serving(served):
    before = served.ask(prompts(9)[0], 6, seed=1).wait()
    weights = served.policy.published()
    name = max(name for name, tensor in weights.items() if tensor.dim() > 1)
    for wrong in (
        {other: tensor for other, tensor in weights.items() if other != name},
        weights | {name: weights[name][:-1]},
    ):
        with pytest.raises(PolicyError):
            served.engine.install(wrong, version=1).result(60)
    after = served.ask(prompts(9)[0], 6, seed=1).wait()
    assert (after.ids, set(after.versions)) == (before.ids, {0})
    served.engine.check().result(60)


def test_a_row_fills_the_whole_context(served):
    full, short = prompts(120, 5)
    asks = [served.ask(full, 8, seed=1), served.ask(short, 123, seed=2)]
    assert [len(ask.wait().ids) for ask in asks] == [8, 123]
    served.check(asks[0])
