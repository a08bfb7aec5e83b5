"""Numbers of a Gemini request's `generationConfig`."""

import json
from typing import Any

import pytest

from proxies.dialect import RequestProblem
from proxies.dialects.body import Fields
from proxies.dialects.gemini.dialect import Gemini
from proxies.dialects.gemini.generation_config import read_number, read_positive
from tests.proxies.conftest import MakeWorld

FLOATS = ("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty")
INTEGERS = ("seed", "maxOutputTokens", "candidateCount")


def parse(**config: Any) -> Any:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": config}
    return Gemini().parse(json.dumps(body).encode(), {":path": "/v1beta/models/m:generateContent"})


@pytest.mark.parametrize(
    "value", ["hot", "", True, [1], {"a": 1}, "NaN", "Infinity", "1_0", "1e999", "[" * 99_999]
)
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_what_is_no_number_is_refused_in_googles_words(name: str, value: Any) -> None:
    kind = "TYPE_FLOAT" if name in FLOATS else "TYPE_INT32"
    with pytest.raises(RequestProblem) as caught:
        parse(**{name: value})
    assert caught.value.problem.kind == "malformed"
    expected = f"Invalid value at 'generationConfig.{name}' ({kind}), {json.dumps(value)}"
    assert caught.value.problem.message == expected


@pytest.mark.parametrize("value", [1.5, "1.5", 2**31, -(2**31) - 1, 10**400])
@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_no_integer_of_32_bits_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestProblem, match="TYPE_INT32"):
        parse(**{name: value})


@pytest.mark.parametrize("value", [0, -1, "0"])
@pytest.mark.parametrize("name", ["maxOutputTokens", "candidateCount"])
def test_a_count_is_positive(name: str, value: Any) -> None:
    with pytest.raises(RequestProblem, match="at least 1"):
        parse(**{name: value})


def test_a_budget_for_thinking_is_a_number() -> None:
    with pytest.raises(
        RequestProblem, match=r"'generationConfig.thinkingConfig.thinkingBudget' \(TYPE_INT32\)"
    ):
        parse(thinkingConfig={"thinkingBudget": "much"})
    assert parse(thinkingConfig={"thinkingBudget": -1}).asked["thinkingConfig"]["thinkingBudget"] == -1


def test_numbers_are_read_as_the_protocol_writes_them() -> None:
    fields = Fields({"temperature": "0.5", "seed": "7", "topK": 64.0, "maxOutputTokens": 9.0, "topP": None})
    assert [read_number(fields, name) for name in ("temperature", "seed", "topK", "topP")] == [
        0.5,
        7,
        64.0,
        None,
    ]
    assert read_positive(fields, "maxOutputTokens") == 9
    request = parse(temperature="0.5", topK=64.0, maxOutputTokens="9", candidateCount=2.0)
    assert (request.max_tokens, request.n) == (9, 2)
    assert request.asked == {"temperature": "0.5", "topK": 64.0, "maxOutputTokens": "9"}


@pytest.mark.anyio
async def test_the_refusal_has_googles_shape(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"topP": "hot"}}
        url = f"{world.base(session)}/v1beta/models/m:generateContent"
        response = await world.http.post(url, json=body)
        assert response.status_code == 400
        message = "Invalid value at 'generationConfig.topP' (TYPE_FLOAT), \"hot\""
        assert response.json() == {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
        assert world.calls(session) == []
