"""The official clients against the dialects: what we write, they read; what they send back, we recognise."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Self

import anthropic
import openai
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from harnessgym.message import Message, ToolCall
from proxies.dialect import (
    Answer,
    Delta,
    Dialect,
    Finished,
    ModelRequest,
    Problem,
    ReasoningDelta,
    RequestProblem,
    Stamp,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from proxies.dialects import DIALECTS, load_dialect

USAGE = Usage(40, 12, 8)
CALLS = (ToolCall("x_0", "find", '{"name":  "red lämp 🎉"}'), ToolCall("x_1", "price", "{}"))
ANSWERS = {
    "text": Message("assistant", "Hello\u2028wörld 🎉"),
    "calls": Message("assistant", "Let me see.", reasoning="First\nfind it.", tool_calls=CALLS),
    "bare": Message("assistant", tool_calls=CALLS[:1]),
    "empty": Message("assistant"),
}
PROBLEMS = {
    "overflow": Problem("overflow", "too long", tokens=2000, max_tokens=1024),
    **{kind: Problem(kind, f"It is {kind}.", retry_after_s=2.5) for kind in
       ("malformed", "unsupported", "unknown_key", "sealed", "not_found", "limit", "overloaded", "upstream")},
}  # fmt: skip


class Served:
    """A dialect behind a real server. The model's name says what is answered; requests are kept as they were read."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect, self.url = dialect, ""
        self.seen: list[ModelRequest] = []

    async def answer(self, http: Request) -> Response:
        try:
            asked = self.dialect.parse(await http.body(), dict(http.headers))
            if asked.model in PROBLEMS:
                raise RequestProblem(PROBLEMS[asked.model])
        except RequestProblem as error:
            status, headers, body = self.dialect.error(error.problem)
            return Response(body, status, headers)
        self.seen.append(asked)
        if asked.stream:
            return StreamingResponse(self.events(asked), media_type="text/event-stream")
        message = ANSWERS[asked.model]
        finish = "tool_calls" if message.tool_calls else "stop"
        return Response(
            self.dialect.render([Answer("a1", asked.model, message, finish, USAGE, 1)], asked), media_type="application/json"
        )

    async def events(self, asked: ModelRequest) -> AsyncIterator[bytes]:
        yield self.dialect.keepalive()
        async for event in self.dialect.stream(deltas(asked.model), Stamp("a1", asked.model, 1), asked, USAGE.prompt_tokens):
            yield event.data
            yield self.dialect.keepalive()
            if asked.stop == ("break",):
                yield self.dialect.stream_error(PROBLEMS["upstream"])
                return


async def deltas(name: str) -> AsyncIterator[Delta]:
    message = ANSWERS[name]
    for kind, text in ((ReasoningDelta, message.reasoning), (TextDelta, message.content)):
        for piece in (text[:3], text[3:]):
            if piece:
                yield kind(piece)
                await asyncio.sleep(0)
    for index, call in enumerate(message.tool_calls):
        yield ToolCallDelta(index, call)
    yield Finished("tool_calls" if message.tool_calls else "stop", USAGE)


@pytest.fixture(scope="module", params=sorted(DIALECTS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    here = Served(load_dialect(request.param))
    routes = [Route(route.path, here.answer, methods=[route.method]) for route in here.dialect.routes]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning", ws="none", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    here.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield here
    server.should_exit = True
    thread.join()
    listener.close()


TOOLS = [("find", "Id of an item."), ("price", "")]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class Client:
    """One SDK, driven the way a harness does it."""

    def __init__(self, served: Served) -> None:
        self.chat = served.dialect.name == "chat"
        if self.chat:
            self.sdk = openai.OpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0)
        else:
            self.sdk = anthropic.Anthropic(base_url=served.url, api_key="k", max_retries=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sdk.close()

    def ask(self, model: str, history: list[dict[str, object]], *, stream: bool, stop: str | None = None) -> object:
        """The SDK's own message object, streamed or not."""
        if self.chat:
            tools = [{"type": "function", "function": {"name": n, "description": d, "parameters": SCHEMA}} for n, d in TOOLS]
            options = {"model": model, "messages": history, "tools": tools, **({"stop": stop} if stop else {})}
            if not stream:
                return self.sdk.chat.completions.create(**options)
            with self.sdk.chat.completions.stream(**options, stream_options={"include_usage": True}) as events:
                return events.get_final_completion()
        tools = [{"name": n, "description": d, "input_schema": SCHEMA} for n, d in TOOLS]
        options = {"model": model, "messages": history, "tools": tools, "max_tokens": 100, "system": "Be brief."}
        options |= {"stop_sequences": [stop]} if stop else {}
        if not stream:
            return self.sdk.messages.create(**options)
        with self.sdk.messages.stream(**options) as events:
            return events.get_final_message()

    def start(self) -> list[dict[str, object]]:
        user = {"role": "user", "content": "What is the price?"}
        return [{"role": "system", "content": "Be brief."}, user] if self.chat else [user]

    def resend(self, answer: object) -> dict[str, object]:
        """The answer as the SDK's own types put it into the next request."""
        if self.chat:
            return answer.choices[0].message.model_dump(exclude_none=True)
        return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}

    def results(self, answer: object) -> list[dict[str, object]]:
        """A result for each call of the answer."""
        if self.chat:
            calls = answer.choices[0].message.tool_calls or []
            return [{"role": "tool", "tool_call_id": call.id, "content": f"Q{i}"} for i, call in enumerate(calls)]
        uses = [block for block in answer.content if block.type == "tool_use"]
        content = [{"type": "tool_result", "tool_use_id": use.id, "content": f"Q{i}"} for i, use in enumerate(uses)]
        return [{"role": "user", "content": [*content, {"type": "text", "text": "Go on."}]}]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with Client(served) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("model", sorted(ANSWERS))
def test_a_client_reads_the_answer_and_its_history_is_recognised(
    served: Served, client: Client, model: str, stream: bool
) -> None:
    answer = client.ask(model, client.start(), stream=stream)
    first = served.seen[-1]
    history = [*client.start(), client.resend(answer), *client.results(answer)]
    client.ask("text", history, stream=stream)
    second = served.seen[-1]
    assert [message.digest for message in second.messages[:3]] == [
        *[message.digest for message in first.messages],
        ANSWERS[model].digest,
    ]
    assert [call.id for call in second.messages[2].tool_calls] == [call.id for call in ANSWERS[model].tool_calls]
    results = [message for message in second.messages[3:] if message.role == "tool"]
    assert [(message.tool_call_id, message.content) for message in results] == [
        (call.id, f"Q{index}") for index, call in enumerate(ANSWERS[model].tool_calls)
    ]
    assert first.tools == second.tools
    assert [tool.name for tool in first.tools] == ["find", "price"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_usage_and_finish_reason(client: Client, stream: bool) -> None:
    for model, (chat, messages) in {"text": ("stop", "end_turn"), "calls": ("tool_calls", "tool_use")}.items():
        answer = client.ask(model, client.start(), stream=stream)
        if client.chat:
            assert answer.choices[0].finish_reason == chat
            usage = answer.usage
            assert (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (40, 12, 8)
        else:
            assert answer.stop_reason == messages
            usage = answer.usage
            assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (32, 8, 12)


ERRORS = {
    "malformed": (400, 400, "BadRequestError"),
    "unsupported": (400, 400, "BadRequestError"),
    "unknown_key": (401, 401, "AuthenticationError"),
    "sealed": (403, 403, "PermissionDeniedError"),
    "limit": (403, 403, "PermissionDeniedError"),
    "not_found": (404, 404, "NotFoundError"),
    "overflow": (400, 400, "BadRequestError"),
    "overloaded": (429, 529, None),
    "upstream": (502, 500, "InternalServerError"),
}


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_errors_are_the_clients_own_exceptions(client: Client, kind: str, stream: bool) -> None:
    sdk = openai if client.chat else anthropic
    with pytest.raises(sdk.APIStatusError) as caught:
        client.ask(kind, client.start(), stream=stream)
    error, (chat, messages, name) = caught.value, ERRORS[kind]
    assert error.status_code == (chat if client.chat else messages)
    assert name is None or type(error) is getattr(sdk, name)
    assert (error.response.headers.get("x-should-retry") == "false") == (kind in ("sealed", "limit"))
    if kind == "overloaded":
        assert error.response.headers["retry-after"] == "3"
        assert not client.chat or isinstance(error, openai.RateLimitError)
    if kind == "overflow":
        said = "maximum context length is 1024 tokens" if client.chat else "prompt is too long: 2000 tokens > 1024 maximum"
        assert said in error.message
        assert not client.chat or error.code == "context_length_exceeded"
    else:
        assert f"It is {kind}." in error.message


def test_a_stream_that_fails_raises(client: Client) -> None:
    sdk = openai if client.chat else anthropic
    with pytest.raises(sdk.APIError, match="It is upstream"):
        client.ask("text", client.start(), stream=True, stop="break")


def test_streamed_bytes_carry_no_line_breaks_in_data(served: Served) -> None:
    asked = ModelRequest("text", (), include_usage=True)

    async def collect() -> bytes:
        events = served.dialect.stream(deltas("text"), Stamp("a1", "text", 1), asked, 3)
        return b"".join([event.data async for event in events])

    text = asyncio.run(collect()).decode()
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(text.splitlines()).isascii()
    assert all(json.loads(line.removeprefix("data: ")) for line in lines)
