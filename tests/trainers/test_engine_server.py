import json
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import torch
from openai import OpenAI
from tokenizers import Tokenizer, decoders, models

from tests.trainers.conftest import fronted
from trainers.engine import EngineSettings
from trainers.engine.server import load_engine
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy

CONFIG = NativeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=1024,
)  # fmt: skip
PROMPT = [5, 9, 2, 40, 33]


def make_model(folder, *, tokenizer=True):
    torch.manual_seed(0)
    save_policy(NativePolicy(CONFIG), folder)
    if tokenizer:
        words = {chr(ord("!") + token): token for token in range(64)}
        made = Tokenizer(models.WordLevel(words, unk_token="!"))
        made.decoder = decoders.Fuse()
        made.save(str(folder / "tokenizer.json"))
    return folder


@contextmanager
def serving(folder, **options):
    """An engine of this process behind the real front on a loopback port."""
    settings = EngineSettings(model=folder, port=0, served_model_name="tiny", **options)
    engine = load_engine(settings)
    with fronted(engine, settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.engine = engine
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(make_model(tmp_path_factory.mktemp("model")), max_batch=4) as client:
        yield client


def ask(client, **body):
    reply = client.post(
        "/v1/completions", json={"prompt": PROMPT, "return_token_ids": True, "logprobs": 0, **body}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def stream(client, **body):
    """All events of a stream, the final mark left out."""
    body = {"prompt": PROMPT, "return_token_ids": True, "logprobs": 0, "stream": True, **body}
    with client.stream("POST", "/v1/completions", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_reply_has_vllms_shape(client):
    reply = client.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 6, "return_token_ids": True, "logprobs": 1}
    ).json()
    choice = reply["choices"][0]
    assert reply["object"] == "text_completion"
    assert reply["model"] == "tiny"
    assert reply["id"].startswith("cmpl-")
    assert reply["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": reply["usage"]["prompt_tokens_details"]["cached_tokens"]},
    }  # fmt: skip
    assert choice["prompt_token_ids"] == PROMPT
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert choice["policy_versions"] == [[6, 0]]
    assert (
        choice["text"]
        == "".join(choice["logprobs"]["tokens"])
        == "".join(chr(ord("!") + token) for token in choice["token_ids"])
    )
    assert choice["logprobs"]["text_offset"] == list(range(6))
    for name, value, top in zip(
        *(choice["logprobs"][key] for key in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert top[name] == value <= max(top.values())
        assert len(top) in (1, 2)


def test_openais_client_reads_replies_and_streams(client):
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none") as openai:
        whole = openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, seed=3)
        chunks = list(
            openai.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, seed=3, stream=True)
        )
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        assert [model.id for model in openai.models.list()] == ["tiny"]


def test_a_stream_says_the_same_as_the_whole(client):
    whole = ask(client, max_tokens=90, seed=7)
    *events, last = stream(client, max_tokens=90, seed=7, stream_options={"include_usage": True})
    choices = [event["choices"][0] for event in events]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 90
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    found = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
    assert found == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-4)
    assert sum(count for choice in choices for count, _ in choice["policy_versions"]) == 90
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


def test_a_seed_gives_the_same_tokens_whatever_else_runs(client):
    alone = [ask(client, max_tokens=40, seed=seed, temperature=1.2)["token_ids"] for seed in range(5)]
    found = {}
    threads = [
        threading.Thread(
            target=lambda s=seed: found.update(
                {s: ask(client, max_tokens=40, seed=s, temperature=1.2)["token_ids"]}
            )
        )
        for seed in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(5)] == alone
    assert len({tuple(ids) for ids in alone}) == 5


def test_greedy_has_logprob_0(client):
    choice = ask(client, max_tokens=5, temperature=0)
    assert choice["logprobs"]["token_logprobs"] == [0.0] * 5


@pytest.mark.parametrize("streamed", [False, True])
def test_stop_strings_end_the_completion_and_stay_out_of_the_text(client, streamed):
    free = ask(client, max_tokens=60, seed=1)
    stop = free["text"][20:23]
    end = free["text"].index(stop)
    body = {"max_tokens": 60, "seed": 1, "stop": ["never said", stop]}
    choices = [event["choices"][0] for event in stream(client, **body)] if streamed else [ask(client, **body)]
    assert "".join(choice["text"] for choice in choices) == free["text"][:end]
    assert [token for choice in choices for token in choice["token_ids"]] == free["token_ids"][: end + 3]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)
    assert ask(client, **body, include_stop_str_in_output=True)["text"] == free["text"][: end + 3]


def test_a_stop_token_is_in_the_ids_and_not_in_the_text(client):
    free = ask(client, max_tokens=30, seed=1)
    token = free["token_ids"][10]
    end = free["token_ids"].index(token)
    choice = ask(client, max_tokens=30, seed=1, stop_token_ids=[token])
    assert choice["token_ids"] == free["token_ids"][: end + 1]
    assert choice["text"] == free["text"][:end]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)


def test_a_prompt_is_scored_without_sampling(client):
    reply = client.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 0, "prompt_logprobs": 0}
    ).json()
    choice = reply["choices"][0]
    with torch.no_grad():
        scores = client.engine.policy(torch.tensor([PROMPT]))[0].log_softmax(-1)
    assert choice["prompt_logprobs"][0] is None
    for position, (token, entry) in enumerate(zip(PROMPT[1:], choice["prompt_logprobs"][1:], strict=True)):
        assert entry[str(token)]["logprob"] == pytest.approx(float(scores[position, token]), abs=1e-5)
    assert reply["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"


def test_closing_the_connection_aborts_the_sequence(client):
    before = client.get("/stats").json()["aborted"]
    body = {"prompt": PROMPT, "max_tokens": 1000}
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        next(reply.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=0.05)
    deadline = time.monotonic() + 60
    while (stats := client.get("/stats").json())["aborted"] < before + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stats["aborted"] == before + 2
    assert stats["running"] == 0


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"prompt": "text"}, 400, "list of token ids"),
        ({"prompt": [[1, 2], [3]]}, 400, "list of token ids"),
        ({"prompt": []}, 400, "prompt"),
        ({}, 400, "prompt"),
        ({"prompt": [1, 64]}, 400, "out of vocabulary"),
        ({"prompt": [1, -1]}, 400, "prompt"),
        ({"prompt": [1], "n": 2}, 400, "`n` is not supported"),
        ({"prompt": [1], "presence_penalty": 0.5}, 400, "`presence_penalty` is not supported"),
        ({"prompt": [1], "logit_bias": {"3": 1}}, 400, "`logit_bias`"),
        ({"prompt": [1], "top_p": 0}, 400, "top_p"),
        ({"prompt": [1], "temperature": -1}, 400, "temperature"),
        ({"prompt": [1], "nonsense": 1}, 400, "nonsense"),
        ({"prompt": [1], "model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": [1], "stream_options": {"include_usage": True}}, 400, "stream=True"),
        (
            {"prompt": [1] * 1000, "max_tokens": 100},
            400,
            "This model's maximum context length is 1024 tokens. However, you requested 1100",
        ),
        ({"prompt": [1] * 1024, "max_tokens": None}, 400, "maximum context length is 1024 tokens"),
        ([1], 400, "JSON object"),
    ],
)
def test_bad_requests_are_refused_in_vllms_words(client, body, status, message):
    reply = client.post("/v1/completions", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, status)
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")
    assert message in error["message"]


def test_neutral_values_of_unsupported_options_pass(client):
    neutral = {
        "n": 1,
        "best_of": 1,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_p": 0,
        "user": "me",
        "echo": False,
    }
    assert len(ask(client, max_tokens=3, logit_bias=None, **neutral)["token_ids"]) == 3


def test_what_is_not_json_is_refused(client):
    reply = client.post("/v1/completions", content=b"{")
    assert reply.status_code == 400
    assert "not JSON" in reply.json()["error"]["message"]


def test_without_a_tokenizer_there_is_no_text_and_no_stop_string(tmp_path):
    with serving(make_model(tmp_path, tokenizer=False)) as client:
        choice = ask(client, max_tokens=3)
        assert choice["text"] == ""
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
        assert (
            "tokenizer.json"
            in client.post("/v1/completions", json={"prompt": [1], "stop": "x"}).json()["error"]["message"]
        )


def test_end_of_sequence_comes_from_the_model_folder(tmp_path):
    make_model(tmp_path)
    with serving(tmp_path) as client:
        free = ask(client, max_tokens=50, seed=1)["token_ids"]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [free[8], 63]}))
    with serving(tmp_path) as client:
        choice = ask(client, max_tokens=50, seed=1)
        assert choice["token_ids"][-1] in (free[8], 63)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert ask(client, max_tokens=50, seed=1, ignore_eos=True)["token_ids"] == free


def test_a_call_that_spans_versions_says_which_token_came_from_which(tmp_path):
    with serving(make_model(tmp_path)) as client:
        events = []
        body = {"prompt": PROMPT, "return_token_ids": True, "max_tokens": 900, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:])["choices"][0])
                    if len(events) == 1:
                        client.engine.install(client.engine.policy.published(), version=4).result(60)
        runs = [run for event in events for run in event["policy_versions"]]
        assert all(len(event["policy_versions"]) == 1 for event in events)
        assert [version for _, version in runs] == sorted(version for _, version in runs)
        assert {version for _, version in runs} == {0, 4}
        assert sum(count for count, _ in runs) == 900
        assert client.get("/stats").json()["version"] == 4


def test_a_failed_engine_is_unhealthy_and_refuses(tmp_path):
    with serving(make_model(tmp_path)) as client:
        assert client.get("/health").status_code == 200
        client.engine.policy.blocks[0].self_attn.o_proj = None
        assert ask(client, max_tokens=3)["finish_reason"] == "abort"
        assert client.get("/health").status_code == 500
        assert client.post("/v1/completions", json={"prompt": PROMPT}).status_code == 503
