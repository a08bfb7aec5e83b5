import pytest

from trainers.engine.protocol import CompletionRequest, RefusalError, parse_request
from trainers.engine.sequence import SequenceSampling


def request(**fields):
    return parse_request({"prompt": [1, 2, 3], **fields}, ("policy", "v3"))


def refusal_of(body):
    with pytest.raises(RefusalError) as refusal:
        parse_request(body, ("policy",))
    return refusal.value


def sampling_refusal(parsed, max_length, vocab_size):
    with pytest.raises(RefusalError) as refusal:
        parsed.sampling(max_length, vocab_size)
    return refusal.value


def test_a_request_has_vllms_defaults():
    assert request().sampling(max_length=100, vocab_size=50) == SequenceSampling(max_tokens=16)


def test_every_field_reaches_the_sampling_parameters():
    parsed = request(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_token_ids=[4, 4, 9],
        stop=["a", "", "b"],
        seed=3,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
    )
    assert parsed.sampling(max_length=100, vocab_size=50) == SequenceSampling(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_token_ids=frozenset({4, 9}),
        stop=("a", "b"),
        seed=3,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
    )


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("", ()), ("end", ("end",)), (["", "x"], ("x",))])
def test_empty_stop_strings_are_left_out(stop, strings):
    assert request(stop=stop).stop_strings == strings


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_three_values_of_top_k_keep_every_token(top_k):
    assert request(top_k=top_k).sampling(100, 50).top_k == 0


def test_no_more_alternatives_are_reported_than_there_are_tokens():
    sampling = request(logprobs=20, prompt_logprobs=20).sampling(max_length=100, vocab_size=6)
    assert (sampling.logprobs, sampling.prompt_logprobs) == (6, 6)


def test_without_max_tokens_the_completion_may_fill_the_context():
    assert request(max_tokens=None).sampling(max_length=10, vocab_size=50).max_tokens == 7


def test_a_request_that_only_scores_its_prompt_samples_one_token():
    assert request(max_tokens=0).sampling(max_length=10, vocab_size=50).max_tokens == 1


def test_a_completion_may_end_exactly_at_the_context_length():
    assert request(max_tokens=7).sampling(max_length=10, vocab_size=50).max_tokens == 7


@pytest.mark.parametrize(
    ("max_tokens", "max_length", "sizes"),
    [
        (8, 10, "requested 11 tokens (3 in the prompt, 8 in the completion)"),
        (None, 3, "requested 4 tokens (3 in the prompt, 1 in the completion)"),
        (0, 3, "requested 4 tokens (3 in the prompt, 1 in the completion)"),
    ],
)
def test_what_does_not_fit_into_the_context_is_refused_with_the_sizes(max_tokens, max_length, sizes):
    refusal = sampling_refusal(request(max_tokens=max_tokens), max_length, vocab_size=50)
    assert sizes in refusal.message
    assert f"maximum context length is {max_length} tokens" in refusal.message
    assert (refusal.status, refusal.param) == (400, "prompt")


def test_the_highest_token_id_outside_the_vocabulary_is_named():
    parsed = parse_request({"prompt": [60, 3, 71]}, ())
    assert sampling_refusal(parsed, 100, vocab_size=50).message == "Token id 71 is out of vocabulary"
    assert parsed.sampling(100, vocab_size=72).max_tokens == 16


def test_stream_options_need_a_stream():
    options = {"include_usage": True}
    assert sampling_refusal(request(stream_options=options), 100, 50).param == "stream_options"
    assert request(stream_options=options, stream=True).sampling(100, 50).max_tokens == 16


@pytest.mark.parametrize("prompt", ["text", [[1, 2], [3, 4]], ["text"], [1.5, 2.5]])
def test_texts_and_batches_are_refused_as_prompts(prompt):
    refusal = refusal_of({"prompt": prompt})
    assert refusal.param == "prompt"
    assert "one prompt as a list of token ids" in refusal.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, "2"]}, "prompt.1"),
        ({"prompt": [1, -2]}, "prompt.1"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 101}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"logprobs": 21}, "logprobs"),
        ({"stream_options": {"usage": True}}, "stream_options.usage"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"unheard_of": None}, "unheard_of"),
    ],
)
def test_a_bad_field_is_refused_by_its_path(fields, param):
    refusal = refusal_of({"prompt": [1], **fields})
    assert (refusal.status, refusal.param) == (400, param)
    assert refusal.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("option", "neutral", "other"),
    [
        ("n", 1, 2),
        ("best_of", None, 3),
        ("echo", False, True),
        ("min_tokens", 0, 1),
        ("bad_words", [], ["no"]),
        ("logit_bias", {}, {"3": 1}),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("suffix", "", "tail"),
        ("repetition_penalty", 1.0, 1.1),
        ("use_beam_search", False, True),
    ],
)
def test_an_unsupported_option_may_only_have_its_neutral_value(option, neutral, other):
    assert request(**{option: neutral}) == request()
    refusal = refusal_of({"prompt": [1], option: other})
    assert (refusal.message, refusal.param) == (f"`{option}` is not supported by this engine.", option)


def test_options_without_effect_on_token_ids_are_ignored():
    assert request(user="ann", request_id="7", add_special_tokens=True) == request()


@pytest.mark.parametrize("model", ["policy", "v3", None])
def test_the_model_is_one_of_the_served_names_or_left_out(model):
    assert request(model=model) == CompletionRequest(prompt=[1, 2, 3], model=model)


def test_another_model_does_not_exist():
    refusal = refusal_of({"prompt": [1], "model": "v3"})
    assert (refusal.status, refusal.message) == (404, "The model `v3` does not exist.")


@pytest.mark.parametrize("body", [None, [1], "prompt", 3])
def test_a_body_is_an_object(body):
    assert refusal_of(body).message == "The request body must be a JSON object."


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "BadRequestError"), (404, "NotFoundError"), (503, "InternalServerError")]
)
def test_a_refusal_is_written_as_vllm_writes_it(status, kind):
    error = {"message": "No.", "type": kind, "param": "model", "code": status}
    assert RefusalError("No.", status=status, param="model").body() == {"error": error}
