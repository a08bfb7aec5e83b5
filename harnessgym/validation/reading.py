"""Reads every file that a sandbox shows, once, and counts lines of given texts in it.

Runs in the sandbox with only the standard library. The texts come on stdin, so that no file has them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Iterator  # noqa: UP035 - for older Pythons

SKIPPED = ("/proc", "/sys", "/dev")
MOST_BYTES = 1 << 20
"""Larger files are data."""
ENDINGS = (
    "", ".cfg", ".csv", ".diff", ".ini", ".json", ".log", ".md", ".orig", ".patch", ".pth", ".py", ".pyi",
    ".pyx", ".rej", ".rst", ".sh", ".toml", ".txt", ".yaml", ".yml",
)  # fmt: skip


def main() -> None:
    """stdin: `{"texts": [[least, lines], ...], "endings": [...], "skipped": [...]}`.

    stdout: `{"found": [[text, path, lines], ...]}`: a file that has at least `least` lines of the text with
    this number.
    """
    job = json.load(sys.stdin)
    texts_of: dict[bytes, list[int]] = {}
    for number, (_, lines) in enumerate(job["texts"]):
        for line in lines:
            texts_of.setdefault(line.encode(), []).append(number)
    wanted = frozenset(texts_of)
    endings = {*ENDINGS, *job["endings"]}
    found = []
    for path in paths(endings, {*SKIPPED, *job["skipped"]}):
        lines = lines_of(path)
        counts: dict[int, int] = {}
        for line in wanted.intersection(lines):
            for number in texts_of[line]:
                counts[number] = counts.get(number, 0) + 1
        found += [
            [number, path, count] for number, count in counts.items() if count >= job["texts"][number][0]
        ]
    json.dump({"found": found}, sys.stdout)


def paths(endings: set[str], skipped: set[str]) -> Iterator[str]:
    """Yields files that may be text. Follows no link, so that none comes twice."""
    folders = ["/"]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in skipped:
                    folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False) and os.path.splitext(entry.name)[1] in endings:
                yield entry.path


def lines_of(path: str) -> list[bytes]:
    """The stripped lines of a text file; none of another file, or one that cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(1024)
            if b"\0" in data:
                return []
            data += file.read(MOST_BYTES)
    except OSError:
        return []
    if len(data) > MOST_BYTES:
        return []
    return [line.strip() for line in data.splitlines()]


if __name__ == "__main__":
    main()
