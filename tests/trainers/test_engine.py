import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from harnessgym.errors import PolicyError, UpstreamError
from trainers.engine.engine import build_engine
from trainers.engine.rows import truncate
from trainers.engine.sequence import Sequence, SequenceSampling, StopMatcher
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.weights.publish import publish_full

CONFIG = NativeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=256,
)  # fmt: skip


def make_policy(seed=0, config=CONFIG):
    torch.manual_seed(seed)
    policy = NativePolicy(config).eval()
    for parameter in policy.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)  # peaked distributions: mistakes show
    return policy


class Ask:
    """One request to an engine, and what came back."""

    def __init__(self, engine, prompt, sampling, **options):
        self.prompt, self.sampling, self.chunks = list(prompt), sampling, []
        self.ended, self.started = threading.Event(), threading.Event()
        self.sequence = Sequence(prompt, sampling, self.take, **options)
        engine.submit(self.sequence)

    def take(self, chunk):
        self.chunks.append(chunk)
        self.started.set()
        if chunk.finish:
            self.ended.set()

    def wait(self):
        assert self.ended.wait(60)
        return self

    ids = property(lambda self: [token for chunk in self.chunks for token in chunk.ids])
    logprobs = property(lambda self: [value for chunk in self.chunks for value in chunk.logprobs])
    versions = property(lambda self: [chunk.version for chunk in self.chunks for _ in chunk.ids])
    finish = property(lambda self: (self.chunks[-1].finish, self.chunks[-1].stop_reason))


@pytest.fixture
def engine():
    made = build_engine(make_policy(), max_batch=4, cached_sequences=4)
    made.start()
    yield made
    made.close()


def prompts(count, length=20, seed=0):
    return np.random.default_rng(seed).integers(0, 64, (count, length)).tolist()


def recomputed(policy, prompt, ids, sampling):
    """Logprob of every completion token under the policy, by one whole forward pass."""
    with torch.no_grad():
        logits = policy(torch.tensor([prompt + ids]))[0, len(prompt) - 1 : -1]
    scores = logits / sampling.temperature
    count = len(scores)
    scores = truncate(
        scores, torch.full((count,), sampling.top_k), torch.full((count,), sampling.top_p)
    ).log_softmax(-1)
    return scores.gather(1, torch.tensor(ids)[:, None])[:, 0]


SAMPLINGS = [SequenceSampling(48, seed=3), SequenceSampling(48, seed=4, temperature=0.7, top_p=0.9, top_k=12)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_are_those_of_the_training_forward(engine, sampling):
    asks = [Ask(engine, prompt, replace(sampling, seed=seed)) for seed, prompt in enumerate(prompts(6))]
    for ask in asks:
        ask.wait()
        expected = recomputed(engine.policy, ask.prompt, ask.ids, sampling)
        assert len(ask.ids) == 48
        assert (expected - torch.tensor(ask.logprobs)).abs().max() < 1e-4


def test_tokens_do_not_depend_on_the_rest_of_the_batch(engine):
    wanted = [
        SequenceSampling(30, seed=seed, temperature=0.5 + seed / 4, top_k=5 * seed) for seed in range(4)
    ]
    alone = [
        Ask(engine, prompt, sampling).wait().ids for prompt, sampling in zip(prompts(4), wanted, strict=True)
    ]
    crowd = [
        Ask(engine, prompt, SequenceSampling(7 + 3 * n, seed=90 + n))
        for n, prompt in enumerate(prompts(5, 33, seed=8))
    ]
    together = [Ask(engine, prompt, sampling) for prompt, sampling in zip(prompts(4), wanted, strict=True)]
    assert [ask.wait().ids for ask in together] == alone
    assert all(len(ask.wait().ids) == 7 + 3 * n for n, ask in enumerate(crowd))


def test_without_a_seed_requests_differ_and_the_engine_is_reproducible():
    runs = []
    for _ in range(2):
        engine = build_engine(make_policy(), max_batch=2, seed=5)
        engine.start()
        runs.append([Ask(engine, prompts(1)[0], SequenceSampling(20)).wait().ids for _ in range(2)])
        engine.close()
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_a_later_prompt_reuses_what_it_shares(engine):
    first = Ask(engine, prompts(1)[0], SequenceSampling(30, seed=1)).wait()
    longer = first.prompt + first.ids + prompts(1, 9, seed=2)[0]
    for prompt, cached in ((longer, 49), ([*longer[:40], 1, 2, 3], 40), (longer, 58)):
        again = Ask(engine, prompt, SequenceSampling(20, seed=2)).wait()
        assert again.chunks[-1].cached_tokens in (cached, cached + 1)  # the next token may happen to agree
        assert (
            recomputed(engine.policy, prompt, again.ids, again.sampling) - torch.tensor(again.logprobs)
        ).abs().max() < 1e-4


def test_a_group_of_equal_prompts_is_prefilled_once(engine):
    prompt = prompts(1, 50)[0]
    asks = [Ask(engine, prompt, SequenceSampling(10, seed=seed)) for seed in range(4)]
    assert sorted(ask.wait().chunks[-1].cached_tokens for ask in asks) == [0, 49, 49, 49]
    assert len({tuple(ask.ids) for ask in asks}) > 1


def test_salts_do_not_share(engine):
    prompt = prompts(1)[0]
    Ask(engine, prompt, SequenceSampling(5), salt="a").wait()
    assert Ask(engine, prompt, SequenceSampling(5), salt="b").wait().chunks[-1].cached_tokens == 0
    assert Ask(engine, prompt, SequenceSampling(5), salt="a").wait().chunks[-1].cached_tokens == 19


def test_many_conversations_keep_their_logprobs_while_rows_are_evicted(engine):
    rng = np.random.default_rng(4)
    talks = prompts(9, 10)
    for turn in range(4):
        asks = [Ask(engine, talk, SequenceSampling(int(rng.integers(1, 12)), seed=turn)) for talk in talks]
        for ask in asks:
            ask.wait()
            found = torch.tensor(ask.logprobs)
            assert (recomputed(engine.policy, ask.prompt, ask.ids, ask.sampling) - found).abs().max() < 1e-4
        talks = [ask.prompt + ask.ids + rng.integers(0, 64, 3).tolist() for ask in asks]
    assert engine.counters.prefix_hits > 0


def test_stop_tokens_end_of_sequence_and_length(engine):
    prompt = prompts(1)[0]
    free = Ask(engine, prompt, SequenceSampling(40, seed=1)).wait()
    token = free.ids[12]
    end = free.ids.index(token) + 1
    stopped = Ask(engine, prompt, SequenceSampling(40, seed=1, stop_token_ids=frozenset({token}))).wait()
    eos = Ask(engine, prompt, SequenceSampling(40, seed=1), eos=frozenset({token})).wait()
    ignored = Ask(
        engine, prompt, SequenceSampling(40, seed=1, ignore_eos=True), eos=frozenset({token})
    ).wait()
    assert free.finish == ignored.finish == ("length", None)
    assert (stopped.finish, eos.finish) == (("stop", token), ("stop", None))
    assert stopped.ids == eos.ids == free.ids[:end]
    assert ignored.ids == free.ids


def test_a_stop_string_ends_at_the_token_that_completes_it():
    matcher = StopMatcher(("ab", "cda"), lambda token: {0: "xa", 1: "b!", 2: "c", 3: "d", 4: ""}[token])
    assert [matcher.feed(token) for token in (0, 4, 2, 3, 4, 0)] == [None, None, None, None, None, None]
    assert matcher.feed(1) == "ab"
    matcher = StopMatcher(("!",), lambda token: "a!b")
    assert matcher.feed(0) == "!"


def test_prompts_are_scored(engine):
    prompt = prompts(1)[0]
    Ask(engine, prompt, SequenceSampling(1)).wait()
    ask = Ask(engine, prompt, SequenceSampling(1, temperature=0.3, prompt_logprobs=2)).wait()
    with torch.no_grad():
        scores = engine.policy(torch.tensor([prompt]))[0].log_softmax(-1)
    for position, score in enumerate(ask.chunks[-1].prompt_scores):
        assert score.token == prompt[position + 1]
        assert abs(score.logprob - float(scores[position, score.token])) < 1e-4
        assert score.rank == int((scores[position] > scores[position, score.token]).sum()) + 1
        assert list(score.alternatives) == scores[position].topk(2).indices.tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_call_that_spans_two_versions_has_each_token_from_the_version_it_names(sampling):
    old, new = make_policy(0), make_policy(1)
    engine = build_engine(make_policy(0), max_batch=4)
    engine.start()
    longer = replace(sampling, max_tokens=200)
    asks = [Ask(engine, prompt, replace(longer, seed=seed)) for seed, prompt in enumerate(prompts(3))]
    assert all(ask.started.wait(60) for ask in asks)
    engine.install(new.published(), version=1).result(60)
    late = Ask(engine, prompts(1)[0], longer)
    for ask in (*asks, late):
        ask.wait()
        versions = ask.versions
        assert versions == sorted(versions)
        if ask is not late:
            assert set(versions) == {0, 1}
        for version, policy in enumerate((old, new)):
            found = torch.tensor(ask.logprobs)[[at for at, v in enumerate(versions) if v == version]]
            expected = recomputed(policy, ask.prompt, ask.ids, longer)[
                [at for at, v in enumerate(versions) if v == version]
            ]
            assert (found - expected).abs().max().item() <= 1e-4 if len(found) else ask is late
    engine.close()
    assert set(late.versions) == {1}


def test_finish_mode_lets_calls_end_on_the_old_weights(engine):
    running = Ask(engine, prompts(1)[0], SequenceSampling(150, seed=1))
    assert running.started.wait(60)
    done = engine.install(make_policy(1).published(), version=1, mode="finish")
    late = Ask(engine, prompts(1)[0], SequenceSampling(5, seed=1))
    done.result(60)
    assert running.ended.is_set()
    assert set(running.versions) == {0}
    assert set(late.wait().versions) == {1}
    assert late.chunks[-1].cached_tokens == 0


def test_nothing_computed_under_old_weights_is_reused(engine):
    first = Ask(engine, prompts(1)[0], SequenceSampling(20, seed=1)).wait()
    engine.install(make_policy(1).published(), version=1).result(60)
    again = Ask(engine, first.prompt + first.ids, SequenceSampling(20, seed=1)).wait()
    assert again.chunks[-1].cached_tokens == 0
    assert (
        recomputed(make_policy(1), again.prompt, again.ids, again.sampling) - torch.tensor(again.logprobs)
    ).abs().max() < 1e-4


def test_weights_that_do_not_fit_leave_the_engine_serving(engine, tmp_path):
    before = Ask(engine, prompts(1)[0], SequenceSampling(9, seed=1)).wait().ids
    with pytest.raises(PolicyError, match="no tensor"):
        engine.install({}, version=1).result(60)
    version = publish_full(tmp_path, 2, None, make_policy(1).published(), step=0, run="r")
    (version.path / "COMMITTED").unlink()
    with pytest.raises(PolicyError, match="COMMITTED"):
        engine.install(version.path, version=2)
    after = Ask(engine, prompts(1)[0], SequenceSampling(9, seed=1)).wait()
    assert (after.ids, set(after.versions)) == (before, {0})


def test_a_version_is_installed_from_its_directory(engine, tmp_path):
    version = publish_full(tmp_path, 2, None, make_policy(1).published(), step=0, run="r")
    engine.install(version.path, version=2).result(60)
    assert set(Ask(engine, prompts(1)[0], SequenceSampling(9)).wait().versions) == {2}


def test_weights_that_are_not_finite_fail_the_check(engine):
    engine.check().result(60)
    broken = {name: tensor * float("nan") for name, tensor in engine.policy.published().items()}
    engine.install(broken, version=1).result(60)
    with pytest.raises(UpstreamError, match="not finite"):
        engine.check().result(60)


def test_abort_running_and_waiting(engine):
    asks = [Ask(engine, prompt, SequenceSampling(200, seed=1)) for prompt in prompts(6)]
    assert asks[0].started.wait(60)
    for ask in (asks[5], asks[0]):
        engine.abort(ask.sequence)
        assert ask.wait().finish == ("abort", None)
    engine.abort(asks[0].sequence)
    assert len(asks[0].ids) < 200
    for ask in asks[1:5]:
        assert len(ask.wait().ids) == 200
    assert sum(chunk.finish is not None for chunk in asks[0].chunks) == 1
    assert engine.counters.aborted == 2


def test_closing_aborts_what_is_left():
    engine = build_engine(make_policy(), max_batch=1)
    engine.start()
    asks = [Ask(engine, prompt, SequenceSampling(200)) for prompt in prompts(3)]
    engine.close()
    assert {ask.wait().finish[0] for ask in asks} <= {"abort", "length"}


def test_a_closed_engine_settles_every_order_and_refuses_more():
    engine = build_engine(make_policy(), max_batch=1)
    engine.start()
    running = Ask(engine, prompts(1)[0], SequenceSampling(200))
    waiting = Ask(engine, prompts(1)[0], SequenceSampling(200))
    assert running.started.wait(60)
    install = engine.install(make_policy(1).published(), version=1, mode="finish")
    engine.close()
    engine.close()
    assert (running.wait().finish[0], waiting.wait().finish[0]) == ("abort", "abort")
    with pytest.raises(UpstreamError, match="has been closed"):
        install.result(60)
    refused(engine, "has been closed")


def refused(engine, match):
    for order in (
        lambda: Ask(engine, [1], SequenceSampling(1)),
        engine.check,
        lambda: engine.install({}, version=1),
    ):
        with pytest.raises(UpstreamError, match=match):
            order()


def test_a_failed_engine_settles_every_order_and_refuses_more(caplog):
    engine, errors = build_engine(make_policy(), max_batch=2), []
    engine.start(errors.append)
    held, go = threading.Event(), threading.Event()

    def take(_):
        held.set()
        assert go.wait(60)
        raise ValueError("taking a chunk failed")

    engine.submit(Sequence(prompts(1)[0], SequenceSampling(200), take))
    assert held.wait(60)
    asks = [Ask(engine, prompt, SequenceSampling(9)) for prompt in prompts(3)]
    futures = [engine.install({}, version=1), engine.install({}, version=2, mode="finish"), engine.check()]
    go.set()
    for future in futures:
        with pytest.raises(UpstreamError, match="taking a chunk failed"):
            future.result(60)
    assert {ask.wait().finish[0] for ask in asks} == {"abort"}
    engine.close()
    assert errors == [engine.failure]
    assert "ValueError: taking a chunk failed" in caplog.text
    refused(engine, "taking a chunk failed")


def test_an_order_that_breaks_the_engine_is_settled_too():
    engine = build_engine(make_policy())
    engine.start()
    engine.policy.blocks[0].self_attn.o_proj = None
    with pytest.raises(UpstreamError, match="not callable"):
        engine.check().result(60)
    engine.close()
    assert isinstance(engine.failure, TypeError)


def test_a_cancelled_order_is_not_carried_out(engine):
    running = Ask(engine, prompts(1)[0], SequenceSampling(100))
    done = engine.install(make_policy(1).published(), version=1, mode="finish")
    assert done.cancel() or done.done()
    assert len(running.wait().ids) == 100
    engine.check().result(60)
    assert done.cancelled() == (engine.version == 0)


def test_the_whole_context_can_be_filled(engine):
    prompt = prompts(1, 250)[0]
    short = [Ask(engine, prompt[:5], SequenceSampling(251, seed=2)) for _ in range(2)]
    full = Ask(engine, prompt, SequenceSampling(6, seed=1)).wait()
    assert len(full.ids) == 6
    assert [len(ask.wait().ids) for ask in short] == [251, 251]
    assert (
        recomputed(engine.policy, prompt, full.ids, full.sampling) - torch.tensor(full.logprobs)
    ).abs().max() < 1e-4


def test_a_llama_policy_with_one_key_head_per_query_head():
    config = replace(CONFIG, num_key_value_heads=4, qk_norm=False, tie_word_embeddings=False)
    engine = build_engine(make_policy(0, config), max_batch=2)
    engine.start()
    ask = Ask(engine, prompts(1)[0], SequenceSampling(20, seed=1)).wait()
    engine.close()
    assert (
        recomputed(engine.policy, ask.prompt, ask.ids, ask.sampling) - torch.tensor(ask.logprobs)
    ).abs().max() < 1e-4
