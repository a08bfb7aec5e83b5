"""What forking a warmed interpreter buys: episodes per second and processor time, forked against cold, per
sandbox.

    python benchmarks/fork.py [--episodes 200] [--concurrency 16] [--json fork.json]

An episode is an unmodified program on the official openai SDK that makes two chat calls. The provider answers
at once, from a process of its own, so the figures are the sandbox's and the harness's. The `true` rows are a
program that does nothing.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harnessgym.sandbox import ExecResult, Prewarm, SandboxBackend
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings, bubblewrap_available
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

EPISODE = """
from openai import OpenAI
client = OpenAI()
for turn in range(2):
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
print(answer.choices[0].message.content)
"""


def provide(listeners: list[socket.socket]) -> None:
    """Answers every request on both listeners at once, with the same chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}
    body = json.dumps(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    ).encode()
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        await asyncio.start_unix_server(answer, sock=listeners[0])
        await asyncio.start_server(answer, sock=listeners[1])
        await asyncio.Event().wait()

    asyncio.run(serve())


async def measure(
    backend: SandboxBackend, program: str, prewarm: Prewarm | None, count: int, width: int
) -> dict[str, float]:
    """Runs `count` episodes, `width` at a time, after one that warms up."""
    gate = asyncio.Semaphore(width)

    async def one() -> ExecResult:
        async with gate, backend.open(Limits()) as sandbox:
            env = {"OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1", "OPENAI_API_KEY": "k"}
            result = await sandbox.exec(["python", program], env=env, prewarm=prewarm, readable=[program])
            if not result.ok:
                raise SystemExit(result.stderr.decode())
            return result

    await one()
    began, used = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*(one() for _ in range(count)))
    wall, node = time.perf_counter() - began, time.process_time() - used
    alone = [(await one()).wall_s for _ in range(10)]
    return {
        "episodes_per_s": count / wall,
        "harness_cpu_ms": 1e3 * sum(result.cpu_s or 0.0 for result in results) / count,
        "node_cpu_ms": 1e3 * node / count,
        "alone_ms": 1e3 * sorted(alone)[len(alone) // 2],
    }


def backends(folder: Path, url: str) -> dict[str, SandboxBackend]:
    """Every backend that can be used here."""
    made: dict[str, SandboxBackend] = {
        "process": ProcessBackend(ProcessSettings(proxy_url=url, workspace_root=folder / "w"))
    }
    if bubblewrap_available() is None:
        made["bubblewrap"] = Bubblewrap(
            BubblewrapSettings(proxy_socket_dir=folder, workspace_root=folder / "w")
        )
    return made


async def compare(folder: Path, url: str, episodes: int, width: int) -> list[dict[str, Any]]:
    """One row per sandbox, program and way of starting it."""
    programs = {"two calls": folder / "episode.py", "true": folder / "nothing.py"}
    programs["two calls"].write_text(EPISODE)
    programs["true"].write_text("")
    rows: list[dict[str, Any]] = []
    for name, backend in backends(folder, url).items():
        async with backend:
            for what, program in programs.items():
                for start, prewarm in (("forked", Prewarm("openai")), ("cold", None)):
                    count = episodes if prewarm is not None or what == "true" else max(8, episodes // 20)
                    figures = await measure(backend, str(program), prewarm, count, width if prewarm else 2)
                    rows.append({"sandbox": name, "program": what, "start": start, **figures})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Forked against cold harness starts.")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local = socket.socket(socket.AF_UNIX)
        local.bind(str(folder / "proxy.sock"))
        tcp = socket.create_server(("127.0.0.1", 0), backlog=512)
        provider = multiprocessing.Process(target=provide, args=([local, tcp],), daemon=True)
        provider.start()
        url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        rows = asyncio.run(compare(folder, url, options.episodes, options.concurrency))
        provider.kill()
    machine = f"{os.cpu_count()} x {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{machine}; {options.concurrency} forked rollouts at a time, 2 cold ones")
    print(
        f"{'sandbox':<12}{'program':<11}{'start':<8}{'episodes/s':>11}{'alone ms':>10}{'harness cpu ms':>16}{'node cpu ms':>13}"
    )
    for row in rows:
        figures = f"{row['episodes_per_s']:>11.1f}{row['alone_ms']:>10.1f}{row['harness_cpu_ms']:>16.1f}{row['node_cpu_ms']:>13.1f}"
        print(f"{row['sandbox']:<12}{row['program']:<11}{row['start']:<8}{figures}")
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine, "argv": sys.argv, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
