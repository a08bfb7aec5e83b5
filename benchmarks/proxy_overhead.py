"""What the proxy adds to a call: latency, and processor time of its process.

    python -m benchmarks.proxy_overhead --calls 400

A proxy process with a scripted engine serves conversations of several turns over TCP, one at a time and several at once. The
engine answers at once, so all latency is the proxy's. With `--wire` the engine is a separate HTTP server that speaks vLLM's
protocol. Prints a table and writes JSON to benchmarks/out/.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send

from harnessgym.rollout.control import ControlClient
from harnessgym.store import policies, rollouts, runs
from harnessgym.store.trace_store import TraceStore
from harnessgym.store.workers import WorkerRow, upsert
from harnessgym.task import Task
from proxies.http_client import HttpClient
from proxies.listener import address_of, listen
from proxies.upstreams.scripted import ScriptedUpstream

POLICY = Path("environments/lookup/policy")
TURNS = 20
ANSWER = [*range(20, 20 + 63), 2]
"""64 tokens; the last ends the turn."""
SYSTEM = "You look things up. " * 20


class InProcess(ScriptedUpstream):
    """The engine as a kind of worker: `benchmarks.proxy_overhead:InProcess`."""

    def __init__(self, address: str, *, version: int) -> None:
        super().__init__([[*ANSWER[:-1], int(address)]], chunk=16, version=version)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    engine: str
    stream: bool
    concurrency: int
    calls: int
    p50_ms: float
    p99_ms: float
    cpu_ms_per_call: float
    calls_per_s: float


async def engine_app(_: Scope, receive: Receive, send: Send) -> None:
    """Streams the answer in four chunks, as an engine would."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    prompt = json.loads(body)["prompt"] if body else []
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    answer = [*ANSWER[:-1], END]
    for start in range(0, len(answer), 16):
        ids = answer[start : start + 16]
        last = start + 16 >= len(answer)
        choice = {
            "index": 0,
            "text": "",
            "logprobs": {"token_logprobs": [-0.5] * len(ids), "tokens": ["x"] * len(ids), "top_logprobs": None},
            "finish_reason": "stop" if last else None,
            "stop_reason": None,
            "token_ids": ids,
            "prompt_token_ids": None if start else prompt,
            "policy_versions": [[len(ids), 0]],
        }
        event = {"id": "cmpl", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}
        await send({"type": "http.response.body", "body": b"data: " + json.dumps(event).encode() + b"\n\n", "more_body": True})
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(answer), "total_tokens": len(prompt) + len(answer)}
    ending = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
    await send({"type": "http.response.body", "body": ending})


END = 0
"""Token id that ends a turn in the benchmark's policy; set by `main`."""


def seed_store(url: str, worker: WorkerRow, run_name: str) -> tuple[str, list[str]]:
    """A run with rollouts to record into: (run id, rollout ids)."""
    with TraceStore.create(url) as store:
        run_id = store.write(lambda conn: runs.add(conn, run_name, {}, "bench", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        task_id = store.write(lambda conn: runs.add_task(conn, "bench", Task(id="0", instruction="")))
        spec = rollouts.GroupSpec(
            run_id=run_id, task_id=task_id, policy_id=policy_id, purpose="train", ordinal=0, seeds=tuple(range(64)),
            sampling={}, submitted_version=0, harnesses=("bench",) * 64, sandbox="none",
        )  # fmt: skip
        store.write(lambda conn: rollouts.submit(conn, spec))
        store.write(lambda conn: upsert(conn, WorkerRow(worker.id, run_id, worker.kind, worker.address, 0, "ready")))
        claimed = store.write(lambda conn: rollouts.claim(conn, run_id, "bench", 600.0, 64))
    return run_id, [row.id for row in claimed]


async def converse(client: HttpClient, key: str, stream: bool, calls: int, latencies: list[float]) -> None:
    """One conversation of up to `TURNS` turns."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Find the first key."}]
    for turn in range(min(calls, TURNS)):
        body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        begun = time.perf_counter()
        async with client.request("POST", f"/s/{key}/v1/chat/completions", body) as response:
            answer = await response.body()
            assert response.status == 200, answer
        latencies.append(time.perf_counter() - begun)
        messages.append({"role": "assistant", "content": _content(answer, stream)})
        messages.append({"role": "user", "content": f"And key number {turn}?"})


def _content(answer: bytes, stream: bool) -> str:
    if not stream:
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


async def measure(
    url: str, control: ControlClient, pid: int, ids: Sequence[str], *, engine: str, stream: bool, concurrency: int, calls: int
) -> Row:
    """Run conversations until there were `calls` calls."""
    client, latencies = HttpClient(url), list[float]()
    sessions = [await control.open_session(ids[index % len(ids)]) for index in range(max(1, calls // TURNS))]
    keys = iter([session.key for session in sessions])

    async def lane() -> None:
        for key in keys:
            await converse(client, key, stream, TURNS, latencies)

    cpu, begun = _cpu_s(pid), time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(concurrency)))
    wall, cpu = time.perf_counter() - begun, _cpu_s(pid) - cpu
    for session in sessions:
        await control.seal(session.session_id)
    latencies.sort()
    return Row(
        engine,
        stream,
        concurrency,
        len(latencies),
        round(1e3 * statistics.median(latencies), 2),
        round(1e3 * latencies[int(0.99 * (len(latencies) - 1))], 2),
        round(1e3 * cpu / len(latencies), 2),
        round(len(latencies) / wall, 1),
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(calls: int, wire: bool) -> list[Row]:
    """All measurements against one proxy process."""
    folder = Path(tempfile.mkdtemp(prefix="hg-bench-"))
    listener = listen(None, None, "127.0.0.1", 0)
    assert listener is not None
    server = uvicorn.Server(uvicorn.Config(engine_app, lifespan="off", log_level="warning", access_log=False, http="httptools"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    engine = "vllm" if wire else "benchmarks.proxy_overhead:InProcess"
    address = address_of(listener) if wire else str(END)
    url = f"sqlite:///{folder}/traces.db"
    run_id, ids = seed_store(url, WorkerRow("w0", None, engine, address, 0, "ready"), "bench")
    settings = {"store": url, "run_id": run_id, "policy": str(POLICY), "port": 0, "control_key": "key", "max_length": 100_000}
    settings |= {"control_uds": str(folder / "control" / "c.sock")}
    code = f"import json; from proxies.app import *; serve(ProxySettings(**json.loads({json.dumps(settings)!r})))"
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = await asyncio.to_thread(child.stdout.readline)
    print(f"ready after {time.perf_counter() - begun:.2f} s")
    proxy_url = line.split(" at ")[1].split(",")[0]
    rows = []
    try:
        async with ControlClient(f"unix:{folder}/control/c.sock", "key") as control:
            await measure(proxy_url, control, child.pid, ids, engine="warm", stream=False, concurrency=1, calls=TURNS)
            for stream in (False, True):
                for concurrency in (1, 8):
                    name = "wire" if wire else "scripted"
                    row = measure(
                        proxy_url, control, child.pid, ids, engine=name, stream=stream, concurrency=concurrency, calls=calls
                    )
                    rows.append(await row)
    finally:
        child.send_signal(signal.SIGTERM)
        await asyncio.to_thread(child.wait)
        server.should_exit = True
        await serving
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--wire", action="store_true")
    options = parser.parse_args()
    global END  # noqa: PLW0603
    from tokenizers import Tokenizer

    END = Tokenizer.from_file(str(POLICY / "tokenizer.json")).token_to_id("<|im_end|>") or 0
    rows = asyncio.run(run(options.calls, options.wire))
    print(f"{'engine':10} {'stream':>6} {'conc':>4} {'calls':>6} {'p50 ms':>7} {'p99 ms':>7} {'cpu ms':>7} {'calls/s':>8}")
    for row in rows:
        print(
            f"{row.engine:10} {row.stream!s:>6} {row.concurrency:4} {row.calls:6} {row.p50_ms:7.2f} {row.p99_ms:7.2f}", end=""
        )
        print(f" {row.cpu_ms_per_call:7.2f} {row.calls_per_s:8.1f}")
    out = Path("benchmarks/out/proxy_overhead.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    out.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
