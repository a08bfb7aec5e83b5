"""Text completions: what a request means, and OpenAI's client against the proxy."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from harnessgym.proxy_client import OpenedSession
from proxies.dialect import Problem, ReasoningDelta, RequestProblem, Stamp
from proxies.dialects.completions import Completions
from tests.proxies.conftest import MakeWorld, World

MARKUP = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'


def parse(**body: Any) -> Any:
    return Completions().parse(json.dumps({"model": "m", "prompt": "One", **body}).encode(), {})


def refused(**body: Any) -> Problem:
    with pytest.raises(RequestProblem) as caught:
        parse(**body)
    return caught.value.problem


@pytest.mark.parametrize(
    ("prompt", "read"), [("One", "One"), (["One"], "One"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))], ids=str
)
def test_one_prompt_alone_or_as_the_only_one_of_a_batch(prompt: Any, read: Any) -> None:
    request = parse(prompt=prompt)
    assert (request.prompt, request.messages, request.tools) == (read, (), ())


def test_a_batch_of_several_is_refused() -> None:
    for prompt in (["One", "Two"], [[1], [2]]):
        problem = refused(prompt=prompt)
        assert (problem.kind, "one prompt a request" in problem.message) == ("unsupported", True)


@pytest.mark.parametrize(
    "option",
    [{"logprobs": 0}, {"logprobs": 5}, {"echo": True}, {"suffix": "."}, {"best_of": 3}, {"best_of": 3, "n": 2},
     {"guided_json": {"type": "object"}}, {"response_format": {"type": "json_object"}}, {"ignore_eos": True}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_done_is_refused(option: dict[str, Any]) -> None:
    assert refused(**option).kind == "unsupported"


def test_what_is_asked() -> None:
    plain = parse(echo=False, suffix=None, logprobs=None, best_of=1)
    assert (plain.max_tokens, plain.n, plain.stop, plain.stream) == (16, 1, (), False)
    full = parse(
        max_tokens=7,
        n=2,
        best_of=2,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        seed=3,
    )
    assert (full.max_tokens, full.n, full.stop, full.stream, full.include_usage) == (
        7,
        2,
        ("a", "b"),
        True,
        True,
    )
    assert full.asked == {"max_tokens": 7, "stop": ["a", "b"], "seed": 3}


@pytest.mark.anyio
async def test_only_text_is_streamed() -> None:
    async def reasons() -> AsyncIterator[Any]:
        yield ReasoningDelta("Hm.")

    with pytest.raises(TypeError, match="ReasoningDelta"):
        [event async for event in Completions().stream(reasons(), Stamp("a", "m", 1), parse(), 1)]


# OpenAI's client and the proxy.


@asynccontextmanager
async def opened(world: World, **options: Any) -> AsyncIterator[tuple[AsyncOpenAI, OpenedSession]]:
    session = await world.open(**options)
    async with AsyncOpenAI(base_url=f"{world.proxy.url}/v1", api_key=session.key, max_retries=0) as client:
        yield client, session


async def ask(
    client: AsyncOpenAI, prompt: Any, *, stream: bool, **options: Any
) -> tuple[list[str], list[str], Any]:
    """Texts and finish reasons by choice, and the usage."""
    wanted: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": 100, **options}
    if not stream:
        answer = await client.completions.create(**wanted)
        return (
            [choice.text for choice in answer.choices],
            [choice.finish_reason for choice in answer.choices],
            answer.usage,
        )
    texts, reasons, usage = [""] * wanted.get("n", 1), [""] * wanted.get("n", 1), None
    async for chunk in await client.completions.create(
        **wanted, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        usage = chunk.usage
    return texts, reasons, usage


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@pytest.mark.anyio
@both_ways
async def test_no_template_and_no_parsing(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(f"{MARKUP} 🎉 end<|im_end|>") as world, opened(world) as (client, session):
        texts, reasons, usage = await ask(client, "Once upon", stream=stream)
        assert (texts, reasons) == ([f"{MARKUP} 🎉 end"], ["stop"])
        (call,) = world.calls(session)
        assert world.prompt(session, call) == world.text("Once upon")
        assert (usage.prompt_tokens, usage.completion_tokens) == (call.prompt_len, call.completion_len)


@pytest.mark.anyio
@both_ways
async def test_stop_length_and_siblings(make_world: MakeWorld, stream: bool) -> None:
    async with make_world("one, two;", "one; two,") as world, opened(world) as (client, _):
        texts, reasons, usage = await ask(client, "Count:", stream=stream, n=2, stop=";")
        assert (sorted(texts), reasons) == (["one", "one, two"], ["stop", "stop"])
        assert usage.completion_tokens == len(world.text("one, two;")) + len(world.text("one; two,"))
        assert (await ask(client, "Count:", stream=stream, max_tokens=2))[1] == ["length"]


@pytest.mark.anyio
@both_ways
async def test_refusals_are_the_client_s_own_exceptions(make_world: MakeWorld, stream: bool) -> None:
    async with make_world("one", max_length=20) as world, opened(world) as (client, _):
        with pytest.raises(BadRequestError, match="tokens in your prompt") as caught:
            await ask(client, "word " * 60, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(BadRequestError, match="one prompt a request"):
            await ask(client, ["a", "b"], stream=stream)
