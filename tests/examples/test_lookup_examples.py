"""The two lookup harnesses: the real programs and SDKs against a scripted provider."""

import importlib.util
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from environments.lookup import LookupTasks, protocol

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = LookupTasks().tasks("test")[0]
CATALOG = protocol.Catalog.from_json(TASK.files[protocol.CATALOG_FILE])
NAME, ID = next(iter(CATALOG.ids.items()))
CALLS = [
    ("find", json.dumps({"name": NAME})),
    ("price", json.dumps({"id": ID})),
    ("weight", json.dumps({"id": "no such id"})),
    ("no_such_tool", json.dumps({"id": ID})),
    ("stock", json.dumps({"name": ID})),
    ("stock", json.dumps({"id": 3})),
    ("find", json.dumps({"name": NAME, "more": "x"})),
]
BROKEN = [("find", '{"name": '), ("find", "[]"), ("find", '"x"'), ("find", "")]


@cache
def module(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Provider(ThreadingHTTPServer):
    """Answers with the scripted turns: a list of (name, arguments) to call, or a text. The last one
    repeats.
    """

    daemon_threads = True

    def __init__(self, turns):
        super().__init__(("127.0.0.1", 0), Handler)
        self.turns, self.requests = turns, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, dict(self.headers.items()), body))
        turn = self.server.turns[min(len(self.server.requests), len(self.server.turns)) - 1]
        make = chat if "chat" in self.path else messages
        data, kind = make(turn, body.get("stream", False))
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def chat(turn, stream):
    message = {"role": "assistant", "content": turn if isinstance(turn, str) else None}
    if not isinstance(turn, str):
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text) in enumerate(turn)
        ]
    base = {"id": "1", "created": 0, "model": "m"}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return json.dumps(
            {**base, "object": "chat.completion", "choices": [choice]}
        ).encode(), "application/json"
    deltas = [
        {"role": "assistant"},
        *({"content": piece} for piece in (turn if isinstance(turn, str) else "")),
    ]
    for index, call in enumerate(message.get("tool_calls", [])):
        text = call["function"]["arguments"]
        deltas.append(
            {
                "tool_calls": [
                    {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
                ]
            }
        )
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in (text[:3], text[3:])
        ]
    chunks = [
        {**base, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        for delta in deltas
    ]
    return "".join(
        f"data: {json.dumps(each)}\n\n" for each in chunks
    ).encode() + b"data: [DONE]\n\n", "text/event-stream"


def messages(turn, stream):
    blocks = [{"type": "text", "text": turn}] if isinstance(turn, str) else []
    if not isinstance(turn, str):
        blocks = [
            {"type": "tool_use", "id": f"c{n}", "name": name, "input": json.loads(text)}
            for n, (name, text) in enumerate(turn)
        ]
    base = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    if not stream:
        return json.dumps({**base, "content": blocks, "stop_reason": "end_turn"}).encode(), "application/json"
    events = [{"type": "message_start", "message": {**base, "content": []}}]
    for index, block in enumerate(blocks):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        if block["type"] == "text":
            events.append(
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "text_delta", "text": block["text"]},
                }
            )
        else:
            part = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events.append({"type": "content_block_delta", "index": index, "delta": part})
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    )
    events.append({"type": "message_stop"})
    return "".join(
        f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events
    ).encode(), "text/event-stream"


def run_program(name, folder, options, env):
    """Runs an example as a process of its own and returns what it prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *options]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_main(name, folder, options, env):
    """Runs an example's `main` in this process: a process pays seconds for importing its SDK."""
    stdout = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout):
        patch.chdir(folder)
        patch.setattr(os, "environ", env)
        patch.setattr(sys, "argv", [f"{name}.py", *options])
        module(name).main()
    return stdout.getvalue()


def run(name, turns, folder, *options, start=run_main):
    (folder / protocol.CATALOG_FILE).write_text(TASK.files[protocol.CATALOG_FILE])
    (folder / "instruction.txt").write_text(TASK.instruction)
    with Provider(turns) as provider:
        url = f"http://127.0.0.1:{provider.server_address[1]}"
        env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
        env |= {"OPENAI_API_KEY": "k-1", "ANTHROPIC_API_KEY": "k-1"}
        log = start(name, folder, options, env)
    return provider.requests, (folder / protocol.ANSWER_FILE).read_text(), log


def results(name, request):
    """Tool results of a request, in order."""
    if name == "lookup_openai":
        return [message["content"] for message in request["messages"] if message["role"] == "tool"]
    blocks = [
        block for message in request["messages"] for block in message["content"] if isinstance(block, dict)
    ]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def expected(calls):
    return [CATALOG.call(name, json.loads(text)) for name, text in calls]


BOTH = pytest.mark.parametrize("name", ["lookup_openai", "lookup_anthropic"])


@BOTH
@pytest.mark.parametrize(("start", "options"), [(run_program, ()), (run_main, ()), (run_main, ("--stream",))])
def test_tools_are_called_and_the_answer_is_written(name, start, options, tmp_path):
    requests, answer, log = run(name, [CALLS[:1], CALLS[1:], " 47\n"], tmp_path, *options, start=start)
    assert [len(results(name, body)) for _, _, body in requests] == [0, 1, len(CALLS)]
    assert results(name, requests[-1][2]) == expected(CALLS)
    assert answer == "47"
    assert "answer: 47" in log
    assert all("k-1" in str(headers) for _, headers, _ in requests)


@BOTH
@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_each_request_continues_the_one_before(name, options, tmp_path):
    requests, _, _ = run(name, [CALLS[:1], CALLS[1:3], "done"], tmp_path, *options)
    bodies = [body for _, _, body in requests]
    for earlier, later in pairwise(bodies):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert {k: v for k, v in later.items() if k != "messages"} == {
            k: v for k, v in earlier.items() if k != "messages"
        }


def test_the_protocol_is_repeated_to_the_character(tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "a").mkdir()
    chat_body = run("lookup_openai", ["x"], tmp_path / "o")[0][0][2]
    body = run("lookup_anthropic", ["x"], tmp_path / "a")[0][0][2]
    assert chat_body["messages"] == [
        {"role": "system", "content": protocol.SYSTEM_PROMPT},
        {"role": "user", "content": TASK.instruction},
    ]
    assert chat_body["tools"] == protocol.TOOLS
    assert body["system"] == protocol.SYSTEM_PROMPT
    assert body["messages"] == [{"role": "user", "content": TASK.instruction}]
    functions = [tool["function"] for tool in protocol.TOOLS]
    assert body["tools"] == [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in functions
    ]


@BOTH
def test_constants_and_results_agree_with_the_protocol(name):
    example = module(name)
    assert (example.SYSTEM_PROMPT, example.MAX_TURNS) == (protocol.SYSTEM_PROMPT, protocol.MAX_TURNS)
    catalog = json.loads(TASK.files[protocol.CATALOG_FILE])
    for tool in ("find", *protocol.KINDS, "nothing"):
        for arguments in (
            {"name": NAME},
            {"id": ID},
            {},
            {"id": "x"},
            {"name": 1},
            {"id": None},
            [],
            "x",
            None,
            3,
        ):
            given = json.dumps(arguments) if name == "lookup_openai" else arguments
            assert example.call_tool(catalog, tool, given) == CATALOG.call(tool, arguments)


def test_broken_arguments_give_a_result_and_not_a_crash(tmp_path):
    requests, answer, _ = run("lookup_openai", [BROKEN, "fine"], tmp_path)
    assert results("lookup_openai", requests[1][2]) == ["unknown"] * len(BROKEN)
    assert answer == "fine"


@BOTH
def test_a_model_that_never_answers_is_cut_off(name, tmp_path):
    requests, answer, _ = run(name, [CALLS[:1]], tmp_path)
    assert len(requests) == protocol.MAX_TURNS
    assert answer == ""


@BOTH
def test_the_instruction_may_come_as_text_or_file(name, tmp_path):
    (tmp_path / "other.txt").write_text("from a file")
    for options, text in ((("as text",), "as text"), (("--instruction", "other.txt"), "from a file")):
        requests, _, _ = run(name, ["x"], tmp_path, *options)
        assert requests[0][2]["messages"][-1]["content"] == text


@BOTH
def test_slow_tools_take_as_long_as_the_seed_says(name, tmp_path):
    example, draw = module(name), random.Random(7)
    drawn = [0.05 * draw.lognormvariate(0, 0.5) for _ in CALLS]
    began = time.monotonic()
    again = random.Random(7)
    for _ in CALLS:
        example.take_time(again, "0.05:0.5")
    assert time.monotonic() - began >= sum(drawn)
    assert again.getstate() == draw.getstate()
    example.take_time(again, None)
    assert again.getstate() == draw.getstate()


@BOTH
def test_slow_tools_say_the_same(name, tmp_path):
    requests, answer, _ = run(name, [CALLS[:1], "47"], tmp_path, "--delay", "0.001:1", "--seed", "3")
    assert results(name, requests[-1][2]) == expected(CALLS[:1])
    assert answer == "47"
