"""The official clients against the dialects: what we write, they read; what they send back, we recognise."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import anthropic
import google.genai
import google.genai.errors
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
    TokenUsage,
    ToolCallDelta,
)
from proxies.dialects import DIALECTS, load_dialect

USAGE = TokenUsage(40, 12, 8)
CALLS = (ToolCall("x_0", "find", '{"name":  "red lämp 🎉"}'), ToolCall("x_1", "price", "{}"))
ANSWERS = {
    "text": Message("assistant", "Hello\u2028wörld 🎉"),
    "calls": Message("assistant", "Let me see.", reasoning="First\nfind it.", tool_calls=CALLS),
    "bare": Message("assistant", tool_calls=CALLS[:1]),
    "empty": Message("assistant"),
}
BROKEN = "broken"
"""The model whose stream fails after it began."""
PROBLEMS = {
    "overflow": Problem("overflow", "too long", tokens=2000, max_tokens=1024),
    **{kind: Problem(kind, f"It is {kind}.", retry_after_s=2.5) for kind in
       ("malformed", "unsupported", "unknown_key", "sealed", "not_found", "limit", "overloaded", "unavailable", "upstream")},
}  # fmt: skip


class Served:
    """A dialect behind a real server. The model's name says what is answered; requests are kept as they
    were read.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect, self.url = dialect, ""
        self.seen: list[ModelRequest] = []

    async def answer(self, http: Request) -> Response:
        try:
            headers = {**http.headers, ":path": http.url.path, ":query": http.url.query}
            asked = self.dialect.parse(await http.body(), headers)
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
            self.dialect.render([Answer("a1", asked.model, message, finish, USAGE, 1)], asked),
            media_type="application/json",
        )

    async def events(self, asked: ModelRequest) -> AsyncIterator[bytes]:
        yield self.dialect.keepalive()
        async for event in self.dialect.stream(
            deltas(asked.model), Stamp("a1", asked.model, 1), asked, USAGE.prompt_tokens
        ):
            yield event.data
            yield self.dialect.keepalive()
            if asked.model == BROKEN:
                yield self.dialect.stream_error(PROBLEMS["upstream"], Stamp("a1", "m", 1))
                return


async def deltas(name: str) -> AsyncIterator[Delta]:
    message = ANSWERS["text" if name == BROKEN else name]
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
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes), log_level="warning", ws="none", lifespan="off")
    )
    listener = socket.create_server(("127.0.0.1", 0))
    here.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield here
    server.should_exit = True
    thread.join()
    listener.close()


TOOLS = [("find", "Id of an item."), ("price", "")]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class Client(Protocol):
    """One SDK, driven the way a harness does it."""

    sdk: Any
    """The client object; it is closed."""
    errors: Any
    """The module with its exceptions."""

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        """The SDK's own answer object, streamed or not."""
        ...

    def start(self) -> list[Any]:
        """The first request's messages."""
        ...

    def resend(self, answer: Any) -> list[Any]:
        """The answer as the SDK's own types put it into the next request."""
        ...

    def results(self, answer: Any) -> list[Any]:
        """A result for each call of the answer."""
        ...

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        """Why the answer ended; prompt, completion and cached tokens."""
        ...


class ChatClient:
    errors = openai

    def __init__(self, url: str) -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        tools = [
            {"type": "function", "function": {"name": n, "description": d, "parameters": SCHEMA}}
            for n, d in TOOLS
        ]
        options = {"model": model, "messages": history, "tools": tools}
        if not stream:
            return self.sdk.chat.completions.create(**options)
        with self.sdk.chat.completions.stream(**options, stream_options={"include_usage": True}) as events:
            return events.get_final_completion()

    def start(self) -> list[Any]:
        return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the price?"}]

    def resend(self, answer: Any) -> list[Any]:
        return [answer.choices[0].message.model_dump(exclude_none=True)]

    def results(self, answer: Any) -> list[Any]:
        calls = answer.choices[0].message.tool_calls or []
        return [{"role": "tool", "tool_call_id": call.id, "content": f"Q{i}"} for i, call in enumerate(calls)]

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        usage = answer.usage
        counts = (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
        return answer.choices[0].finish_reason, counts


class MessagesClient:
    errors = anthropic

    def __init__(self, url: str) -> None:
        self.sdk = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        tools = [{"name": n, "description": d, "input_schema": SCHEMA} for n, d in TOOLS]
        options = {
            "model": model,
            "messages": history,
            "tools": tools,
            "max_tokens": 100,
            "system": "Be brief.",
        }
        if not stream:
            return self.sdk.messages.create(**options)
        with self.sdk.messages.stream(**options) as events:
            return events.get_final_message()

    def start(self) -> list[Any]:
        return [{"role": "user", "content": "What is the price?"}]

    def resend(self, answer: Any) -> list[Any]:
        return [
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in answer.content],
            }
        ]

    def results(self, answer: Any) -> list[Any]:
        uses = [block for block in answer.content if block.type == "tool_use"]
        content = [
            {"type": "tool_result", "tool_use_id": use.id, "content": f"Q{i}"} for i, use in enumerate(uses)
        ]
        return [{"role": "user", "content": [*content, {"type": "text", "text": "Go on."}]}]

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        usage = answer.usage
        cached = usage.cache_read_input_tokens
        return answer.stop_reason, (usage.input_tokens + cached, usage.output_tokens, cached)


class ResponsesClient:
    errors = openai

    def __init__(self, url: str) -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        tools = [
            {"type": "function", "name": n, "description": d, "parameters": SCHEMA, "strict": False}
            for n, d in TOOLS
        ]
        options = {"model": model, "input": history, "tools": tools, "instructions": "Be brief."}
        if not stream:
            return self.sdk.responses.create(**options)
        with self.sdk.responses.stream(**options) as events:
            return events.get_final_response()

    def start(self) -> list[Any]:
        return [{"role": "user", "content": "What is the price?"}]

    def resend(self, answer: Any) -> list[Any]:
        return [item.model_dump(exclude_none=True) for item in answer.output]

    def results(self, answer: Any) -> list[Any]:
        calls = [item for item in answer.output if item.type == "function_call"]
        return [
            {"type": "function_call_output", "call_id": call.call_id, "output": f"Q{i}"}
            for i, call in enumerate(calls)
        ]

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        usage = answer.usage
        return answer.status, (
            usage.input_tokens,
            usage.output_tokens,
            usage.input_tokens_details.cached_tokens,
        )


class CompletionsClient:
    errors = openai

    def __init__(self, url: str) -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        options = {"model": model, "prompt": "".join(history)}
        if not stream:
            return self.sdk.completions.create(**options)
        chunks = list(
            self.sdk.completions.create(**options, stream=True, stream_options={"include_usage": True})
        )
        whole = chunks[-2].model_copy(update={"usage": chunks[-1].usage})
        whole.choices[0].text = "".join(chunk.choices[0].text for chunk in chunks[:-1])
        return whole

    def start(self) -> list[Any]:
        return ["What is the price?"]

    def resend(self, answer: Any) -> list[Any]:
        return [answer.choices[0].text]

    def results(self, answer: Any) -> list[Any]:
        return []

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        usage = answer.usage
        counts = (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
        return answer.choices[0].finish_reason, counts


class GeminiErrors:
    """Google's client has one exception where others have two."""

    APIError = APIStatusError = google.genai.errors.APIError


class GeminiClient:
    """Results name no call: Google's own helper for them takes no id."""

    errors = GeminiErrors

    def __init__(self, url: str) -> None:
        self.sdk = google.genai.Client(api_key="k", http_options={"base_url": url})

    def ask(self, model: str, history: list[Any], *, stream: bool) -> Any:
        functions = [{"name": n, "description": d, "parameters_json_schema": SCHEMA} for n, d in TOOLS]
        config: Any = {"system_instruction": "Be brief.", "tools": [{"function_declarations": functions}]}
        config |= {"thinking_config": {"include_thoughts": True}}
        if not stream:
            return [self.sdk.models.generate_content(model=model, contents=history, config=config)]
        return list(self.sdk.models.generate_content_stream(model=model, contents=history, config=config))

    def start(self) -> list[Any]:
        return [google.genai.types.UserContent("What is the price?")]

    def resend(self, answer: Any) -> list[Any]:
        return [chunk.candidates[0].content for chunk in answer]

    def results(self, answer: Any) -> list[Any]:
        calls = [
            part.function_call
            for chunk in answer
            for part in chunk.candidates[0].content.parts
            if part.function_call
        ]
        part = google.genai.types.Part.from_function_response
        results = [part(name=call.name, response={"output": f"Q{i}"}) for i, call in enumerate(calls)]
        return [google.genai.types.UserContent([*results, "Go on."])]

    def ended(self, answer: Any) -> tuple[str, tuple[int, int, int]]:
        usage, reason = answer[-1].usage_metadata, answer[-1].candidates[0].finish_reason
        counts = (usage.prompt_token_count, usage.candidates_token_count, usage.cached_content_token_count)
        return reason.value, counts


CLIENTS: dict[str, Callable[[str], Client]] = {
    "chat": ChatClient,
    "completions": CompletionsClient,
    "gemini": GeminiClient,
    "messages": MessagesClient,
    "responses": ResponsesClient,
}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    client = CLIENTS[served.dialect.name](served.url)
    yield client
    client.sdk.close()


@pytest.mark.parametrize(
    "served", sorted(DIALECTS.keys() - {"completions"}), indirect=True
)  # which has no conversations
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("model", sorted(ANSWERS))
def test_a_client_reads_the_answer_and_its_history_is_recognised(
    served: Served, client: Client, model: str, stream: bool
) -> None:
    answer = client.ask(model, client.start(), stream=stream)
    first = served.seen[-1]
    history = [*client.start(), *client.resend(answer), *client.results(answer)]
    client.ask("text", history, stream=stream)
    second = served.seen[-1]
    assert [message.digest for message in second.messages[:3]] == [
        *[message.digest for message in first.messages],
        ANSWERS[model].digest,
    ]
    assert [call.id for call in second.messages[2].tool_calls] == [
        call.id for call in ANSWERS[model].tool_calls
    ]
    results = [message for message in second.messages[3:] if message.role == "tool"]
    assert [(message.tool_call_id, message.content) for message in results] == [
        (call.id, f"Q{index}") for index, call in enumerate(ANSWERS[model].tool_calls)
    ]
    assert first.tools == second.tools
    assert [tool.name for tool in first.tools] == ["find", "price"]


ENDED = {
    "chat": {"text": "stop", "calls": "tool_calls"},
    "completions": {"text": "stop"},
    "gemini": {"text": "STOP", "calls": "STOP"},
    "messages": {"text": "end_turn", "calls": "tool_use"},
    "responses": {"text": "completed", "calls": "completed"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_usage_and_finish_reason(served: Served, client: Client, stream: bool) -> None:
    for model, reason in ENDED[served.dialect.name].items():
        answer = client.ask(model, client.start(), stream=stream)
        assert client.ended(answer) == (reason, (40, 12, 8))


ERRORS = {
    "malformed": (400, "BadRequestError"),
    "unsupported": (400, "BadRequestError"),
    "unknown_key": (401, "AuthenticationError"),
    "sealed": (403, "PermissionDeniedError"),
    "limit": (403, "PermissionDeniedError"),
    "not_found": (404, "NotFoundError"),
    "overflow": (400, "BadRequestError"),
    "overloaded": (429, "RateLimitError"),
    "unavailable": (503, "InternalServerError"),
    "upstream": (502, "InternalServerError"),
}
OTHER_ERRORS = {
    "gemini": {
        **{kind: (status, "ClientError") for kind, (status, _) in ERRORS.items()},
        "unavailable": (503, "ServerError"),
        "upstream": (500, "ServerError"),
    },
    "messages": {
        "overloaded": (529, "OverloadedError"),
        "unavailable": (529, "OverloadedError"),
        "upstream": (500, "InternalServerError"),
    },
}
OVERFLOWS = {
    "chat": "maximum context length is 1024 tokens",
    "completions": "maximum context length is 1024 tokens, however you requested 2000 tokens in your prompt",
    "gemini": "The input token count (2000) exceeds the maximum number of tokens allowed (1024).",
    "messages": "prompt is too long: 2000 tokens > 1024 maximum",
    "responses": "Your input exceeds the context window of this model.",
}


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_errors_are_the_clients_own_exceptions(
    served: Served, client: Client, kind: str, stream: bool
) -> None:
    with pytest.raises(client.errors.APIStatusError) as caught:
        client.ask(kind, client.start(), stream=stream)
    error = caught.value
    ours = ERRORS | OTHER_ERRORS.get(served.dialect.name, {})
    assert (error.response.status_code, type(error).__name__) == ours[kind]
    assert (error.response.headers.get("x-should-retry") == "false") == (kind in ("sealed", "limit"))
    if kind in ("overloaded", "unavailable"):
        assert error.response.headers["retry-after"] == "3"
    if kind == "overflow":
        assert OVERFLOWS[served.dialect.name] in error.message
        assert client.errors is not openai or error.code == "context_length_exceeded"
    else:
        assert f"It is {kind}." in error.message


def test_a_stream_that_fails_raises(client: Client) -> None:
    with pytest.raises(client.errors.APIError, match="It is upstream"):
        client.ask(BROKEN, client.start(), stream=True)


def test_streamed_bytes_carry_no_line_breaks_in_data(served: Served) -> None:
    asked = ModelRequest("text", (), include_usage=True, headers={":query": "alt=sse"})

    async def collect() -> bytes:
        events = served.dialect.stream(deltas("text"), Stamp("a1", "text", 1), asked, 3)
        return b"".join([event.data async for event in events])

    text = asyncio.run(collect()).decode()
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(text.splitlines()).isascii()
    assert all(json.loads(line.removeprefix("data: ")) for line in lines)
