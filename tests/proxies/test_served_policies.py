"""Which policy answers a call."""

import pytest

from harnessgym.message import Message
from proxies.language import PolicyLanguage
from proxies.served_policies import ServedPolicies, ServedPolicy


@pytest.fixture
def two(language: PolicyLanguage) -> ServedPolicies:
    return ServedPolicies(
        (ServedPolicy.of("planner", language, "p1"), ServedPolicy.of("coder", language, "p2"))
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [("planner", "planner"), ("coder", "coder"), ("gpt-5", "planner"), ("", "planner"), (None, "planner")],
)
def test_a_call_goes_to_the_policy_of_its_name_or_to_the_first(
    two: ServedPolicies, model: str | None, name: str
) -> None:
    assert two.named(model).name == name


@pytest.mark.parametrize(("policy_id", "name"), [("p2", "coder"), ("p3", "planner"), (None, "planner")])
def test_an_unknown_id_is_that_of_the_first_policy(
    two: ServedPolicies, policy_id: str | None, name: str
) -> None:
    assert two.by_id(policy_id).name == name


def test_names_are_in_the_order_of_the_policies(two: ServedPolicies) -> None:
    assert two.names == ("planner", "coder")
    assert two.first.id == "p1"


def test_a_single_policy_answers_every_call(language: PolicyLanguage) -> None:
    alone = ServedPolicies.alone(language)
    assert (alone.names, alone.first.id) == (("policy",), None)
    assert alone.named("gpt-5") is alone.by_id("any") is alone.first


def test_tokens_are_read_in_the_language_of_the_policy_that_sampled_them(two: ServedPolicies) -> None:
    renderer = two.first.language.renderer
    ids = tuple(renderer.encode("Hello.")) + tuple(renderer.encode("<|im_end|>"))
    assert two.read(ids, "p2") == Message("assistant", "Hello.")
