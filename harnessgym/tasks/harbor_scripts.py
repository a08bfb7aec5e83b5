"""Texts and scripts of a Harbor task or of one of its steps: instruction, solution, what is laid, what is waited for."""

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
_SOLVE = """script=/solution/$2
shift 2
chmod +x "$script"
if [ "$(head -c 2 "$script")" = '#!' ]; then exec env "$@" "$script"; else exec env "$@" sh "$script"; fi
"""
_SETUP = "if command -v bash >/dev/null 2>&1; then exec bash ./setup.sh; fi; exec sh ./setup.sh"
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


def solution(folder: Path, env: Mapping[str, str]) -> Solution | None:
    """What a folder with a `solve.sh` does; None if there is none."""
    return solved_by(packed(folder), "solve.sh", env) if (folder / "solve.sh").is_file() else None


def solved_by(files: str, script: str, env: Mapping[str, str]) -> Solution:
    """Packed files, laid into `/solution`, and a script among them that is run in the working folder."""
    values = [f"{key}={value}" for key, value in env.items()]
    return Solution({_PACKED: files}, (("sh", "-c", _UNPACK + _SOLVE, "sh", "/solution", script, *values),))


def working_files(folder: Path) -> tuple[dict[str, str], tuple[tuple[str, ...], ...]]:
    """What is laid into the working folder before a step, and the commands that do it; its `setup.sh` is run."""
    if not folder.is_dir():
        return {}, ()
    unpack = ("sh", "-c", _UNPACK, "sh", ".")
    setup = (("sh", "-c", _SETUP),) if (folder / "setup.sh").is_file() else ()
    return {_PACKED: packed(folder)}, (unpack, *setup)


def waiting(check: Healthcheck | None) -> tuple[tuple[str, ...], ...]:
    """Commands that end when a healthcheck succeeds, or fail when it has failed often enough."""
    if check is None:
        return ()
    times = (check.timeout_sec, check.interval_sec, int(check.start_period_sec), check.start_interval_sec)
    return (("sh", "-c", _WAIT, "sh", *(f"{each:g}" for each in times), str(check.retries), check.command),)
