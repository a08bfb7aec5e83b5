"""The embedded engine over HTTP, with its native policy and through transformers' cache, against transformers'
batched `generate`: sampled tokens per second.

    python -m benchmarks.engine [--small-only] [--repeats 5] [--dtype float32]

All arms have the same weights, prompts, number of new tokens, precision and torch threads, and sample. The
engine is a server process that streams to 32 concurrent requests from this client process; the peer runs in a
process of its own, with the whole batch in one `generate` call and no HTTP. The arms take turns. Two cases
per model: `distinct` prompts (nothing shared) and `shared` (32 times one new prompt, as a group of rollouts
has it: the engine computes it once).
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from harnessgym.run_config.run import Implementation

BATCH, PROMPT, NEW = 32, 128, 64
TINY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "qk_norm": True,
}  # fmt: skip
LLAMA_135M = {
    "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1_536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 2_048, "qk_norm": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One case: sampled tokens per second of all arms, all repeats and medians."""

    model: str
    prompts: str
    dtype: str
    engine: list[float]
    through_transformers: list[float]
    """The engine through transformers' cache."""
    transformers: list[float]
    engine_median: float
    through_transformers_median: float
    transformers_median: float
    ratio: float
    """Of the native engine to `generate`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--small-only", action="store_true")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve-through", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        run_peer(options.peer, options.dtype)
    elif options.serve:
        run_server(options.serve, options.dtype, "native")
    elif options.serve_through:
        run_server(options.serve_through, options.dtype, "transformers")
    else:
        compare(options.dtype, options.repeats, small_only=options.small_only)


def compare(dtype: str, repeats: int, *, small_only: bool) -> None:
    models = {"tiny Qwen3 0.13M": TINY, "tiny Llama 0.13M": TINY | {"qk_norm": False}}
    models |= {} if small_only else {"Llama 135M": LLAMA_135M}
    results = []
    for name, shape in models.items():
        results += measure(name, shape, dtype, min(3, repeats) if shape is LLAMA_135M else repeats)
    report(results)


def measure(name: str, shape: dict[str, object], dtype: str, repeats: int) -> list[Result]:
    """All arms in turns, after one warm-up each."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), shape)
        *servers, peer = (spawn(option, folder, dtype) for option in ("--serve", "--serve-through", "--peer"))
        try:
            urls = [server.stdout.readline().split()[-1] for server in servers]
            assert peer.stdout.readline().strip() == "ready"
            return [
                measure_case(name, case, dtype, urls, peer, int(str(shape["vocab_size"])), repeats)
                for case in ("distinct", "shared")
            ]
        finally:
            for process in (*servers, peer):
                process.terminate()
                process.wait()


def measure_case(
    name: str, case: str, dtype: str, urls: list[str], peer: "subprocess.Popen[str]", vocab: int, repeats: int
) -> Result:
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {"engine": [], "through": [], "transformers": []}
    for repeat in range(repeats + 1):
        ids = (
            rng.integers(0, vocab, (BATCH, PROMPT))
            if case == "distinct"
            else np.tile(rng.integers(0, vocab, PROMPT), (BATCH, 1))
        )
        engine, through = (BATCH * NEW / asyncio.run(ask_engine(url, ids.tolist())) for url in urls)
        peer.stdin.write(json.dumps(ids.tolist()) + "\n")
        peer.stdin.flush()
        transformers = BATCH * NEW / float(peer.stdout.readline())
        if repeat > 0:
            rates["engine"].append(engine)
            rates["through"].append(through)
            rates["transformers"].append(transformers)
    medians = {arm: statistics.median(values) for arm, values in rates.items()}
    ratio = medians["engine"] / medians["transformers"]
    return Result(
        name,
        case,
        dtype,
        rates["engine"],
        rates["through"],
        rates["transformers"],
        medians["engine"],
        medians["through"],
        medians["transformers"],
        ratio,
    )


async def ask_engine(url: str, prompts: list[list[int]]) -> float:
    """Seconds until the last of the concurrent streams has ended; connections are open beforehand."""
    host, port = url.removeprefix("http://").split(":")
    connections = [await asyncio.open_connection(host, int(port), limit=1 << 20) for _ in prompts]
    start = time.perf_counter()
    asked = zip(connections, prompts, range(len(prompts)), strict=True)
    counts = await asyncio.gather(*(ask_one(*connection, prompt, seed) for connection, prompt, seed in asked))
    taken = time.perf_counter() - start
    assert counts == [NEW] * len(prompts), counts
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()
    return taken


async def ask_one(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prompt: list[int], seed: int
) -> int:
    """Stream one completion over a bare socket (client libraries take longer per event than the engine);
    its tokens.
    """
    body = {
        "prompt": prompt,
        "max_tokens": NEW,
        "seed": seed,
        "logprobs": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    data = json.dumps(body | {"stream": True}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: %d\r\n\r\n" % len(data) + data
    )
    count = 0
    while not (line := await reader.readline()).startswith(b"data: [DONE]"):
        assert line, "the engine closed the stream"
        if line.startswith(b"data: {"):
            count += len(json.loads(line[6:])["choices"][0]["token_ids"])
    return count


def run_server(folder: Path, dtype: str, implementation: Implementation) -> None:
    from trainers.engine import EngineSettings, serve

    settings = EngineSettings(
        model=folder,
        implementation=implementation,
        port=0,
        dtype=dtype,  # type: ignore[arg-type]
        max_batch=BATCH,
    )
    serve(settings)


def run_peer(folder: Path, dtype: str) -> None:
    """Answer each line of prompts with the seconds that `generate` took."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        ids = torch.tensor(json.loads(line))
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )
        taken = time.perf_counter() - start
        assert out.shape == (BATCH, PROMPT + NEW)
        print(taken, flush=True)


def make_model(folder: Path, shape: dict[str, object]) -> None:
    import torch

    from trainers.policies.native import NativePolicy
    from trainers.policies.native_config import NativeConfig
    from trainers.policies.native_weights import save_policy

    torch.manual_seed(0)
    save_policy(NativePolicy(NativeConfig(**shape)), folder)  # type: ignore[arg-type]


def spawn(option: str, folder: str, dtype: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "benchmarks.engine", option, folder, "--dtype", dtype]
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def report(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch_threads": 1,
    }
    table = Table(
        title=f"{BATCH} requests, {PROMPT} prompt + {NEW} new tokens, 1 torch thread, {machine['processor']}"
    )
    for column in (
        "model",
        "prompts",
        "dtype",
        "engine over HTTP tok/s",
        "through transformers' cache tok/s",
        "transformers generate tok/s",
        "ratio",
    ):
        table.add_column(column)
    for row in results:
        cells = (
            row.model,
            row.prompts,
            row.dtype,
            f"{row.engine_median:,.0f}",
            f"{row.through_transformers_median:,.0f}",
            f"{row.transformers_median:,.0f}",
            f"{row.ratio:.2f}",
        )
        table.add_row(*cells)
    Console().print(table)
    out = Path(__file__).parent / "out" / "engine.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(
        json.dumps({"machine": machine, "results": [asdict(row) for row in results]}, indent=2) + "\n"
    )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
