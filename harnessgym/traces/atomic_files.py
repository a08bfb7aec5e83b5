"""Writes files that appear complete or not at all: streamed lines, or a document per rollout."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from harnessgym.errors import ConfigError
from harnessgym.traces.export import TracedRollout

Json = dict[str, Any]


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a path for a file or folder that replaces `out` at the end. After an error it is removed.

    Raises `ConfigError` if `out` is a folder that is not empty: such a folder is never replaced.
    """
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"The folder {out} is not empty. Name another, or empty it first.")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Next to `out`, because a rename is atomic only within one file system.
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(out)
    finally:
        _clear(part)


@contextmanager
def replacing_text(out: Path) -> Iterator[IO[str]]:
    """Like `replacing`, for one text file. Raises `ConfigError` if `out` is a folder."""
    if out.is_dir():
        raise ConfigError(
            f"{out} is a folder; this format is one file. Name a file, e.g. {out / 'traces.jsonl'}."
        )
    with replacing(out) as part, part.open("w", encoding="utf-8") as file:
        yield file


def write_lines(
    rollouts: Iterable[TracedRollout], out: Path, lines: Callable[[TracedRollout], Iterable[Json]]
) -> int:
    """Write one JSON object per line. Returns how many."""
    written = 0
    with replacing_text(out) as file:
        for rollout in rollouts:
            for line in lines(rollout):
                file.write(dumped(line) + "\n")
                written += 1
    return written


def write_documents(
    rollouts: Iterable[TracedRollout], out: Path, make: Callable[[TracedRollout], Json]
) -> int:
    """Write a JSON document per rollout. Returns how many.

    A `.json` file holds a single document, a `.jsonl` file one per line; any other path is a folder with one
    file per document. Raises `ConfigError` for a `.json` file and more than one rollout.
    """
    if out.suffix == ".jsonl":
        return write_lines(rollouts, out, lambda rollout: [make(rollout)])
    if out.suffix == ".json":
        with replacing_text(out) as file:
            written = 0
            for rollout in rollouts:
                if written:
                    raise ConfigError(f"{out} holds one rollout; for several name a .jsonl file or a folder.")
                file.write(dumped(make(rollout)))
                written += 1
        return written
    if out.is_file():
        raise ConfigError(
            f"{out} is a file of an unknown kind: name a .json file, a .jsonl file or a folder."
        )
    with replacing(out) as folder:
        folder.mkdir()
        written = 0
        for rollout in rollouts:
            (folder / f"{rollout.id}.json").write_text(dumped(make(rollout)), encoding="utf-8")
            written += 1
    return written


def dumped(value: Any) -> str:
    """Return strict JSON. Raises `ValueError` for numbers that JSON does not have (NaN, infinity)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
