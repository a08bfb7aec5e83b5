"""Cards of the served models, for clients of three vendors."""

import json
from typing import Any

import pytest

from proxies.gateway import ModelCards

CARDS = ModelCards(("planner", "coder"), max_length=4096, created=7)


def answer(path: str, *, google: bool = False) -> Any:
    body = CARDS.answer(path, google=google)
    assert body is not None
    return json.loads(body)


def test_the_common_list_has_edges_and_a_card_a_model() -> None:
    listed = answer("/v1/models")
    assert [card["id"] for card in listed["data"]] == ["planner", "coder"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == ("planner", "coder")


def test_a_card_has_the_fields_of_openai_s_and_anthropic_s_clients() -> None:
    assert answer("/v1/models/coder") == {
        "id": "coder",
        "object": "model",
        "created": 7,
        "owned_by": "harnessgym",
        "type": "model",
        "display_name": "coder",
        "max_model_len": 4096,
    }


@pytest.mark.parametrize(("path", "google"), [("/v1beta/models", False), ("/v1/models", True)])
def test_google_s_list_comes_by_path_or_by_client(path: str, google: bool) -> None:
    assert [card["name"] for card in answer(path, google=google)["models"]] == [
        "models/planner",
        "models/coder",
    ]


def test_google_s_card_has_the_limits() -> None:
    card = answer("/v1beta/models/planner")
    assert (card["inputTokenLimit"], card["outputTokenLimit"]) == (4096, 4096)
    assert card["supportedGenerationMethods"] == ["generateContent", "countTokens"]


@pytest.mark.parametrize("name", ["gpt-5", "org/name", "coder/x"])
def test_an_unknown_name_gets_the_card_of_the_first_model(name: str) -> None:
    assert answer(f"/v1/models/{name}")["id"] == "planner"


@pytest.mark.parametrize("path", ["/v1/model", "/v2/models", "/v1/models/", "/x/v1/models", "/v1/models?x"])
def test_other_paths_list_no_models(path: str) -> None:
    assert CARDS.answer(path, google=False) is None
