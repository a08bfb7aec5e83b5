"""What a model's cache can do is found by trying; where it cannot do something, the engine is slower, not wrong."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harnessgym.errors import PolicyError
from tests.trainers.engine.test_runner import HookedAsk, prompts, recomputed
from tests.trainers.policies.families import tiny_model
from trainers.engine import EngineSettings
from trainers.engine.engine import build_engine
from trainers.engine.sequence import SequenceSampling
from trainers.engine.server import load_engine
from trainers.policies.loading import load_served

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
WHOLE = "each token computes its whole row again"
ALONE = "rows are decoded one by one"
UNSHARED = "prefixes are not shared"
MODELS = {
    "mamba": ({"state_size": 8}, {UNSHARED}),
    "rwkv": ({"attention_hidden_size": 32}, {WHOLE}),
    "deepseek_v4": ({"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}, {ALONE}),
    "bloom": ({"n_layer": 2, "n_head": 4}, set()),  # takes no positions
    "lfm2": (
        {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48, "num_key_value_heads": 2},
        set(),
    ),
}
"""Options of a tiny model, and what its cache cannot do."""


def saved(kind, folder, **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SHAPE | options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_cache_cannot_do_is_done_otherwise(kind, tmp_path):
    options, lacks = MODELS[kind]
    model = saved(kind, tmp_path, **options)
    engine = build_engine(load_served(tmp_path), max_batch=3, cached_sequences=3)
    assert {
        what for what in (WHOLE, ALONE, UNSHARED) if f"{what}, because " in engine.runner.notice()
    } == lacks
    engine.start()
    asks = [
        HookedAsk(engine, prompt, SequenceSampling(9, seed=seed), None)
        for seed, prompt in enumerate(prompts(9, 14, 9, 21))
    ]
    asks.append(
        HookedAsk(engine, asks[1].wait().prompt + asks[1].ids + [5] * 7, SequenceSampling(9, seed=9), None)
    )
    for ask in asks:
        expected = recomputed(model, ask.wait().prompt, ask.ids, ask.sampling)
        assert (expected - torch.tensor(ask.logprobs)).abs().max() < 1e-4
    assert asks[-1].chunks[-1].cached_tokens == (0 if lacks & {WHOLE, UNSHARED} else 22)
    engine.close()


def test_rows_end_where_positions_would_change_with_every_token(tmp_path):
    options = {"intermediate_size": 48, "rope_parameters": DYNAMIC, "max_position_embeddings": 32}
    saved("llama", tmp_path, **options)
    engine = build_engine(load_served(tmp_path), max_batch=2, max_length=64)
    assert engine.rows.cache.length == 32
    assert "rows end at 32 tokens" in engine.runner.notice()


def test_the_engine_says_at_its_start_why_it_is_slower(tmp_path, caplog):
    tiny_model("qwen2").save_pretrained(tmp_path / "qwen2")
    tiny_model("qwen3").save_pretrained(tmp_path / "qwen3")
    load_engine(EngineSettings(model=tmp_path / "qwen3"))
    assert not caplog.messages
    load_engine(EngineSettings(model=tmp_path / "qwen2"))
    (message,) = caplog.messages
    assert "Qwen2ForCausalLM" in message
    assert "slower than our own module" in message
    caplog.clear()
    load_engine(EngineSettings(model=tmp_path / "qwen3", implementation="transformers"))
    assert 'implementation = "transformers"' in caplog.text


def test_lower_precision_and_a_missing_gpu(tmp_path):
    model = tiny_model("gemma3")
    model.save_pretrained(tmp_path)
    engine = build_engine(load_served(tmp_path, dtype=torch.bfloat16), max_batch=2)
    assert next(engine.policy.parameters()).dtype == torch.bfloat16
    assert "because" not in engine.runner.notice()
    engine.start()
    ask = HookedAsk(engine, prompts(9)[0], SequenceSampling(5, seed=1), None).wait()
    engine.close()
    assert len(ask.ids) == 5
    if not torch.cuda.is_available():
        with pytest.raises(PolicyError, match="no GPU"):
            load_served(tmp_path, device="cuda")
