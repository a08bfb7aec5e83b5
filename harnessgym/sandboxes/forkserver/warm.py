"""Warm-ups: load SDKs once, before the first fork.

Importing an SDK is not enough. Much of it is built on first use: lazy resource modules, pydantic validators,
codecs, the HTTP stack. So each warmer uses one client against a stub on loopback and closes it again, leaving
no socket and no thread.
"""

import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

_KEY = "warm-up"


def warm(name: str) -> None:
    """Runs a known warmer, or the function at `"module:function"`."""
    if name in WARMERS:
        WARMERS[name]()
        return
    module, _, function = name.partition(":")
    target = importlib.import_module(module)
    if function:
        getattr(target, function)()


def warm_openai() -> None:
    """Chat completions, whole and streamed, with a tool."""
    with _stub(_chat_answers()) as url:
        from openai import OpenAI  # type: ignore[import-not-found,unused-ignore]

        client = OpenAI(base_url=f"{url}/v1", api_key=_KEY, max_retries=0)
        for stream in (False, True):
            answer = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], tools=[_CHAT_TOOL], stream=stream
            )
            for _ in answer if stream else ():
                pass
        client.close()


def warm_anthropic() -> None:
    """Messages with a tool."""
    with _stub(_messages_answers()) as url:
        from anthropic import Anthropic  # type: ignore[import-not-found,unused-ignore]

        client = Anthropic(base_url=url, api_key=_KEY, max_retries=0)
        client.messages.create(
            model="m", max_tokens=16, messages=[{"role": "user", "content": "hi"}], tools=[_MESSAGES_TOOL]
        )
        client.close()


def warm_mini_swe_agent() -> None:
    """A model call through litellm, as text. What mini-swe-agent reads from its environment as it loads is
    set for good.
    """
    os.environ |= {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
    }
    os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = sys.prefix  # it creates the folder if it is missing
    tempfile.tempdir = (
        sys.prefix
    )  # litellm asks for one as it loads, and none is writable here; it writes nothing
    for module in ("agents.default", "environments.local", "run.mini"):
        importlib.import_module(f"minisweagent.{module}")
    logging: Any = importlib.import_module("litellm.litellm_core_utils.thread_pool_executor").executor
    logging.submit = lambda function, *args, **kwargs: function(
        *args, **kwargs
    )  # in this thread: none may be left behind
    with _stub(_chat_answers()[:1]) as url:
        get_model = importlib.import_module("minisweagent.models").get_model
        settings = {
            "model_class": "litellm_textbased",
            "action_regex": "^",
            "model_kwargs": {"api_base": url, "api_key": _KEY},
        }
        get_model("openai/m", settings).query([{"role": "user", "content": "hi"}])
        clients: Any = importlib.import_module("litellm").in_memory_llm_clients_cache
        for client in clients.cache_dict.values():
            if isinstance(client, importlib.import_module("openai").OpenAI):
                client.close()
        clients.flush_cache()
    loops: Any = importlib.import_module("asyncio")
    # prompt_toolkit has made one, with a pair of sockets
    loops.get_event_loop_policy().get_event_loop().close()
    loops.set_event_loop_policy(None)
    importlib.import_module("minisweagent.models").GLOBAL_MODEL_STATS.__init__()  # it has counted the call
    del logging.submit
    tempfile.tempdir = None


WARMERS: dict[str, Callable[[], None]] = {
    "openai": warm_openai,
    "anthropic": warm_anthropic,
    "mini_swe_agent": warm_mini_swe_agent,
}

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
_CHAT_TOOL: Any = {"type": "function", "function": {"name": "t", "description": "t", "parameters": _SCHEMA}}
_MESSAGES_TOOL: Any = {"name": "t", "description": "t", "input_schema": _SCHEMA}


def _json(body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(data),
        data,
    )


def _chat_answers() -> list[bytes]:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
    whole["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    whole["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    delta = {"role": "assistant", "content": "a", "tool_calls": [{"index": 0, **call}]}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
    events = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(events)
    return [_json(whole), head + events]


def _messages_answers() -> list[bytes]:
    content = [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "c", "name": "t", "input": {}}]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content}
    return [_json({**message, "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}})]


@contextlib.contextmanager
def _stub(answers: list[bytes]) -> Iterator[str]:
    """A server that gives these answers in turn on one connection, in a child process: threads must not
    outlive it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if pid == 0:
            _answer(listener, answers)
            os._exit(0)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.close()
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _answer(listener: socket.socket, answers: list[bytes]) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        for answer in answers:
            length = 0
            while (line := reader.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            reader.read(length)
            connection.sendall(answer)
