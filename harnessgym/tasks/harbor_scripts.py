"""Texts and scripts of a Harbor task or of one of its steps: instruction, solution, what is laid, what is waited for."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.task import Solution
from harnessgym.tasks.harbor_table import Healthcheck
from harnessgym.tasks.packing import packed

_PACKED = ".harnessgym-packed"
"""File of the workspace that folders come in, until they are unpacked."""
_UNPACK = f"""set -e
mkdir -p "$1"
base64 -d {_PACKED} | gzip -dc | tar -xf - -C "$1"
rm -f {_PACKED}
"""
_WAIT = """\
limit=$1 interval=$2 period=$3 first=$4 retries=$5 command=$6
if command -v timeout >/dev/null 2>&1; then bounded="timeout $limit"; else bounded=; fi
began=$(date +%s) failed=0
while :; do
    if $bounded sh -c "$command"; then exit 0; fi
    if [ $(( $(date +%s) - began )) -lt "$period" ]; then sleep "$first"; continue; fi
    failed=$((failed + 1))
    if [ "$failed" -ge "$retries" ]; then echo "the healthcheck failed $failed times: $command" >&2; exit 1; fi
    sleep "$interval"
done
"""


def instruction(folder: Path, *, needed: bool) -> str:
    """What the agent is told; may be empty where it is not `needed`."""
    path = folder / "instruction.md"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    if needed and not text:
        raise TaskError(f"{path} is {'empty' if path.is_file() else 'not there'}. Write what the agent is to do.")
    return text


def solution(folder: Path, env: Mapping[str, str], script: str = "solve.sh") -> Solution | None:
    """A folder with a script, laid into `/solution` and run in the working folder; None if there is none."""
    if not (folder / script).is_file():
        return None
    named = shlex.quote(f"/solution/{script}")
    values = [f"{key}={value}" for key, value in env.items()]
    run = f'{_UNPACK}chmod +x {named}\nshift\nexec env "$@" {named}\n'
    return Solution({_PACKED: packed(folder)}, (("sh", "-c", run, "sh", "/solution", *values),))


def working_files(folder: Path) -> tuple[dict[str, str], tuple[tuple[str, ...], ...]]:
    """What is laid into the working folder before a step, and the commands that do it; its `setup.sh` is run."""
    if not folder.is_dir():
        return {}, ()
    unpack = ("sh", "-c", _UNPACK, "sh", ".")
    setup = (("sh", "-c", "chmod +x setup.sh && exec ./setup.sh"),) if (folder / "setup.sh").is_file() else ()
    return {_PACKED: packed(folder)}, (unpack, *setup)


def waiting(check: Healthcheck | None) -> tuple[tuple[str, ...], ...]:
    """Commands that end when a healthcheck succeeds, or fail when it has failed often enough."""
    if check is None:
        return ()
    times = (check.timeout_sec, check.interval_sec, int(check.start_period_sec), check.start_interval_sec)
    return (("sh", "-c", _WAIT, "sh", *(f"{each:g}" for each in times), str(check.retries), check.command),)
