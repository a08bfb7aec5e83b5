"""Results of finished parts of a benchmark, so that one that was interrupted goes on."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harnessgym.run_folder import write_json


def remembered(path: Path, told: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` gave: an earlier time, if the file at `path` was written for the same `told`, else now.

    `told` must hold every setting that changes the result. Code is not looked at, unless it holds `commit()`.
    """
    told = json.loads(json.dumps(told))
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found["told"] == told:
            return found
    result = {"told": told, **run()}
    write_json(path, result)
    return result


def commit() -> str:
    """What is checked out, or nothing outside a repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()
