"""Reading ten thousand SWE-bench rows, beside what parsing their JSON alone takes, and beside `datasets`."""

import gc
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.sandbox.timing import Clock, Figures
from harnessgym.tasks.source import task_format

ROWS = 10_000
_WORDS = (
    "error",
    "value",
    "column",
    "model",
    "query",
    "cache",
    "index",
    "wrong",
    "parse",
    "option",
    "path",
    "field",
    "returns",
)


def measure(*, quick: bool) -> Iterator[tuple[str, Figures]]:
    """Seconds, best of a few, and rows a second."""
    with tempfile.TemporaryDirectory(prefix="harnessgym-rows-") as folder:
        path = Path(folder) / "rows.jsonl"
        size = write_rows(path, ROWS)
        times = 1 if quick else 5
        ours = _best(times, lambda: _ours(path))
        plain = _best(times, lambda: _plain(path))
        theirs = _best(times, lambda: _datasets(path))
    yield f"{ROWS:,} rows to tasks", {"seconds": ours, "rows_per_s": ROWS / ours, "mb": size / 1e6}
    yield "bound: json.loads of each line", {"seconds": plain, "rows_per_s": ROWS / plain}
    yield "peer: datasets, to Python rows", {"seconds": theirs, "rows_per_s": ROWS / theirs}
    yield "ours over the bound", {"times": ours / plain}


def write_rows(path: Path, count: int) -> int:
    """Rows as SWE-bench has them, made from a seed; the bytes of the file."""
    draw = random.Random(20_000)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps(_row(number, draw)) + "\n")
    return path.stat().st_size


def _row(number: int, draw: random.Random) -> dict[str, Any]:
    """About 9 kB: texts, two patches, tests to be fixed and kept as JSON in a string."""
    module = draw.choice(_WORDS)
    tests = [
        f"tests/test_{module}.py::test_{draw.choice(_WORDS)}_{place}"
        for place in range(draw.randrange(20, 60))
    ]
    return {
        "repo": f"owner/{module}",
        "instance_id": f"owner__{module}-{number}",
        "base_commit": f"{draw.getrandbits(160):040x}",
        "patch": _patch(f"src/{module}.py", draw, 30),
        "test_patch": _patch(f"tests/test_{module}.py", draw, 40),
        "problem_statement": _text(draw, 220),
        "hints_text": _text(draw, 60),
        "created_at": "2024-05-17T09:30:00Z",
        "version": f"{draw.randrange(9)}.{draw.randrange(20)}",
        "FAIL_TO_PASS": json.dumps(tests[:2]),
        "PASS_TO_PASS": json.dumps(tests[2:]),
        "environment_setup_commit": f"{draw.getrandbits(160):040x}",
    }


def _patch(path: str, draw: random.Random, lines: int) -> str:
    body = "\n".join(f"{draw.choice(' +-')}    {_text(draw, 7)}" for _ in range(lines))
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,{lines} +1,{lines} @@\n{body}\n"


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=words))


def _ours(path: Path) -> None:
    loaded = task_format("swe_bench").read(path)
    if len(loaded.tasks) != ROWS:
        raise RuntimeError(f"{len(loaded.tasks)} of {ROWS} rows became tasks: {loaded.problems[:2]}")


def _plain(path: Path) -> None:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if len(rows) != ROWS:
        raise RuntimeError("Rows are missing.")


def _datasets(path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        found = datasets.Dataset.from_json(str(path), cache_dir=cache)
        if len(found.to_list()) != ROWS:
            raise RuntimeError("Rows are missing.")


def _best(times: int, once: Callable[[], None]) -> float:
    """Seconds of the fastest."""
    found = []
    for _ in range(times):
        gc.collect()
        clock = Clock()
        once()
        found.append(clock())
    return min(found)
