import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from trainers.engine.protocol import CompletionRequest
from trainers.engine.reply import EngineReply, FolderDetokenizer
from trainers.engine.sequence import Chunk, TokenScore

POLICY = Path(__file__).parents[3] / "environments/lookup/policy"
DETOKENIZER = FolderDetokenizer.load(POLICY)
TOKENIZER = Tokenizer.from_file(str(POLICY / "tokenizer.json"))
END = TOKENIZER.token_to_id("<|im_end|>")


def encoded(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def chunk(ids, version=0, **fields):
    return Chunk(list(ids), [-0.5] * len(ids), version, **fields)


def reply_of(*chunks, detokenizer=DETOKENIZER, **fields):
    reply = EngineReply(CompletionRequest(prompt=[1, 2], **fields), "policy", detokenizer)
    for part in chunks:
        reply.feed(part)
    return reply


def whole(*chunks, **fields):
    return json.loads(reply_of(*chunks, **fields).whole())


def choice(*chunks, **fields):
    (only,) = whole(*chunks, **fields)["choices"]
    return only


def streamed_texts(*chunks, **fields):
    reply = EngineReply(CompletionRequest(prompt=[1, 2], stream=True, **fields), "policy", DETOKENIZER)
    texts = []
    for part in chunks:
        reply.feed(part)
        texts.append(json.loads(reply.event().removeprefix(b"data: "))["choices"][0]["text"])
    return texts


def test_a_folder_without_a_tokenizer_has_no_detokenizer(tmp_path):
    assert FolderDetokenizer.load(tmp_path) is None


def test_usage_counts_prompt_completion_and_cached_tokens():
    reply = whole(chunk([5, 6, 7]), chunk([8], finish="length", cached_tokens=1))
    assert reply["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert (reply["object"], reply["model"]) == ("text_completion", "policy")


def test_versions_are_run_length_encoded_across_chunks():
    parts = [chunk([1, 2], 3), chunk([4], 3), chunk([], 4), chunk([5], 5), chunk([6], 3, finish="length")]
    assert choice(*parts)["policy_versions"] == [[3, 3], [1, 5], [1, 3]]


def test_a_completion_of_no_tokens_has_no_versions():
    assert choice(chunk([], 4, finish="abort"))["policy_versions"] == []


def test_a_stop_token_is_left_out_of_the_text_only():
    ids = [*encoded("Hi"), END]
    written = choice(chunk(ids, finish="stop", stop_reason=END), return_token_ids=True)
    assert (written["text"], written["token_ids"], written["prompt_token_ids"]) == ("Hi", ids, [1, 2])


def test_the_last_token_is_kept_if_the_length_ended_the_completion():
    assert choice(chunk(encoded("Hi there"), finish="length"))["text"] == "Hi there"


@pytest.mark.parametrize(("include", "text"), [(False, "One "), (True, "One STOP")])
def test_a_stop_string_ends_the_text(include, text):
    part = chunk(encoded("One STOP and more"), finish="stop", stop_reason="STOP")
    assert choice(part, stop="STOP", include_stop_str_in_output=include)["text"] == text


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_a_stream_never_sends_a_part_of_its_stop_string(sizes):
    ids = encoded("Count: 1 2 3 4 5 and STOP")
    parts = []
    while ids:
        size = sizes[len(parts) % len(sizes)]
        parts.append(chunk(ids[:size]))
        ids = ids[size:]
    parts[-1] = parts[-1]._replace(finish="stop", stop_reason="STOP")
    texts = streamed_texts(*parts, stop=["STOP", "nothing"])
    assert "".join(texts) == "Count: 1 2 3 4 5 and "


def test_text_that_only_looked_like_a_stop_string_is_sent_with_the_last_chunk():
    texts = streamed_texts(chunk(encoded("One ST")), chunk(encoded("EP"), finish="length"), stop="STOP")
    assert "".join(texts) == "One STEP"
    assert len(texts[0]) == len("One ST") - len("STOP")


def test_a_character_is_sent_with_the_token_that_completes_it():
    ids = encoded("🎉")
    assert len(ids) > 1
    texts = streamed_texts(*[chunk([token]) for token in ids])
    assert texts == [*[""] * (len(ids) - 1), "🎉"]


def test_without_detokenizing_there_is_no_text():
    assert choice(chunk(encoded("Hi"), finish="length"), detokenize=False)["text"] == ""
    assert choice(chunk(encoded("Hi"), finish="length"), detokenizer=None)["text"] == ""


def test_special_tokens_are_written_on_request():
    parts = chunk([*encoded("Hi"), END, *encoded("you")], finish="length")
    assert choice(parts)["text"] == "Hiyou"
    assert choice(parts, skip_special_tokens=False)["text"] == "Hi<|im_end|>you"


def test_scoring_a_prompt_gives_no_tokens():
    scores = [TokenScore(2, -1.5, 4, {9: -0.25, 2: -1.5})]
    part = Chunk([7], [-0.1], 0, prompt_scores=scores, finish="stop", stop_reason=7)
    written = whole(part, max_tokens=0, prompt_logprobs=2)
    (only,) = written["choices"]
    assert (only["text"], only["finish_reason"], only["stop_reason"]) == ("", "length", None)
    assert written["usage"]["completion_tokens"] == 0
    first, second = only["prompt_logprobs"]
    assert first is None
    assert second["2"] == {"logprob": -1.5, "rank": 4, "decoded_token": DETOKENIZER.name(2)}
    assert second["9"] == {"logprob": -0.25, "rank": 1, "decoded_token": DETOKENIZER.name(9)}


def test_an_aborted_scoring_stays_aborted():
    assert choice(chunk([], finish="abort"), max_tokens=0)["finish_reason"] == "abort"


def test_logprobs_name_each_token_and_where_its_text_begins():
    ids = encoded("Hi there")
    names = [DETOKENIZER.name(token) for token in ids]
    logprobs = choice(chunk(ids, finish="length"), logprobs=0)["logprobs"]
    assert logprobs["tokens"] == names
    assert logprobs["token_logprobs"] == [-0.5] * len(ids)
    assert logprobs["top_logprobs"] is None
    assert logprobs["text_offset"] == [len("".join(names[:at])) for at in range(len(ids))]


def test_offsets_of_a_stream_go_on_from_chunk_to_chunk():
    reply = EngineReply(CompletionRequest(prompt=[1], stream=True, logprobs=0), "policy", DETOKENIZER)
    offsets = []
    for token in encoded("Hi there you"):
        reply.feed(chunk([token]))
        offsets += json.loads(reply.event().removeprefix(b"data: "))["choices"][0]["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert len(set(offsets)) == len(offsets)


def test_alternatives_stand_beside_the_sampled_token():
    part = Chunk([5], [-0.5], 0, alternatives=[{6: -1.0, 5: -3.0, 7: float("-inf")}], finish="length")
    logprobs = choice(part, logprobs=3, return_tokens_as_token_ids=True)["logprobs"]
    top = {"token_id:5": -0.5, "token_id:6": -1.0, "token_id:7": -9999.0}
    assert logprobs["top_logprobs"] == [top]


def test_a_stream_has_the_prompt_s_ids_in_its_first_event_only():
    reply = EngineReply(CompletionRequest(prompt=[1, 2], stream=True, return_token_ids=True), "p", None)
    prompts = []
    for part in (chunk([5]), chunk([6], finish="length")):
        reply.feed(part)
        prompts.append(json.loads(reply.event().removeprefix(b"data: "))["choices"][0]["prompt_token_ids"])
    assert prompts == [[1, 2], None]


@pytest.mark.parametrize("include", [False, True])
def test_a_stream_ends_with_its_usage_on_request(include):
    options = {"include_usage": include}
    events = (
        reply_of(chunk([5], finish="length"), stream=True, stream_options=options).ending().split(b"\n\n")
    )
    assert events[-2:] == [b"data: [DONE]", b""]
    assert len(events) == 2 + include
    if include:
        usage = json.loads(events[0].removeprefix(b"data: "))
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 3)


def test_continuous_usage_stands_on_every_event():
    reply = EngineReply(
        CompletionRequest(prompt=[1, 2], stream=True, stream_options={"continuous_usage_stats": True}),
        "policy",
        None,
    )
    totals = []
    for part in (chunk([5]), chunk([6, 7])):
        reply.feed(part)
        totals.append(json.loads(reply.event().removeprefix(b"data: "))["usage"]["completion_tokens"])
    assert totals == [1, 3]
