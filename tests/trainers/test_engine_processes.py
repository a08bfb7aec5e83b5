"""The two processes of `harnessgym engine`: each ends with the other, whatever ends it."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from harnessgym.process import identify
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy

CONFIG = NativeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=16_384,
)  # fmt: skip
WIDE = NativeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=16_384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=4096,
)  # fmt: skip
PROMPT = [5, 9, 2, 40, 33]


@contextmanager
def engine(folder, config=CONFIG, fd=None):
    """`harnessgym engine` at the head of a process group of its own."""
    torch.manual_seed(0)
    save_policy(NativePolicy(config), folder)
    where = ["--port", "0"] if fd is None else ["--fd", str(fd)]
    process = subprocess.Popen(
        [sys.executable, "-m", "harnessgym", "engine", str(folder), *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        pass_fds=[] if fd is None else [fd],
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def url_of(process):
    line = process.stdout.readline()
    assert line.startswith("engine engine-0 serves "), line
    return line.split()[-1]


def front_of(process):
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return identify(int(pid))


def gone(process, seconds=5):
    deadline = time.monotonic() + seconds
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not process.alive()


@contextmanager
def long_stream(url):
    """A stream that goes on, its first event read."""
    body = {"prompt": PROMPT, "max_tokens": 16_000, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


@pytest.mark.parametrize("inherited", [False, True])
def test_it_prints_where_it_serves_and_ends_quietly(tmp_path, inherited):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, engine(tmp_path, fd=listener.fileno() if inherited else None) as process:
        url = url_of(process)
        assert not inherited or url.endswith(f":{listener.getsockname()[1]}")
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_the_front_has_no_torch(tmp_path):
    with engine(tmp_path) as process:
        url_of(process)
        mapped = Path(f"/proc/{front_of(process).pid}/maps").read_text()
        assert "libpython" in mapped or "python3" in mapped
        assert "torch" not in mapped
        assert "torch" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_both_ends_both_in_time_while_they_serve(tmp_path, number):
    with engine(tmp_path) as process, long_stream(url_of(process)) as lines:
        front = front_of(process)
        start = time.monotonic()
        os.killpg(process.pid, number)
        *_, last, end = (line for line in lines if line)
        assert process.wait(20) == 0
        assert time.monotonic() - start < 3.0
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert end == "data: [DONE]"
        assert not front.alive()
        assert process.stderr.read() == ""


def test_killing_the_core_leaves_no_front(tmp_path):
    with engine(tmp_path) as process, long_stream(url_of(process)):
        front = front_of(process)
        assert front.alive()
        process.kill()
        assert gone(front)


def test_killing_the_front_ends_the_core_with_status_1(tmp_path):
    with engine(tmp_path) as process:
        url = url_of(process)
        with long_stream(url) as lines:
            front_of(process).signal(signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        assert process.wait(20) == 1
        log = process.stderr.read()
        assert log.splitlines()[-1].endswith(
            "The HTTP process of engine-0 ended with status -9, so the engine ends too."
        )
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_front_that_hangs_does_not_keep_the_core(tmp_path):
    with engine(tmp_path) as process, long_stream(url_of(process)):
        front = front_of(process)
        front.signal(signal.SIGSTOP)
        time.sleep(0.2)
        process.terminate()
        assert process.wait(20) == 0
        assert not front.alive()


def test_a_failed_engine_ends_both_with_status_1(tmp_path):
    """The fault is lack of memory: the core may take no more than it has, and the prompt needs it."""
    with engine(tmp_path, WIDE) as process:
        url, front = url_of(process), front_of(process)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (16 << 20)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        reply = httpx.post(
            f"{url}/v1/completions", json={"prompt": PROMPT * 800, "max_tokens": 3}, timeout=60
        )
        assert reply.json()["choices"][0]["finish_reason"] == "abort"
        assert process.wait(20) == 1
        assert not front.alive()
        log = process.stderr.read()
    assert "The engine's thread failed" in log
    assert "can't allocate memory" in log
