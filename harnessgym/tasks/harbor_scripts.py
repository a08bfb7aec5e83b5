"""Texts and scripts of a Harbor task or one of its steps: instruction, solution, files, healthcheck."""

from collections.abc import Mapping
from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.file_bundle import Bundle, bundle
from harnessgym.task import Setup, Solution
from harnessgym.tasks.harbor_table import Healthcheck

_LAID = ".harnessgym-solution"
"""Folder of the workspace where a solution is written before it is moved to `/solution`."""
_PACKED = ".harnessgym-packed"
"""Archive of files that are not text, until it is unpacked."""
_UNPACK = f"""if [ -f {_PACKED} ]; then base64 -d {_PACKED} | gzip -dc | tar -xf - && rm -f {_PACKED}; fi
"""
_SOLVE = f"""set -e
script=/solution/$1 executable=$2; shift 2
mkdir -p /solution
cp -R {_LAID}/. /solution/
rm -rf {_LAID}
( cd /solution
{_UNPACK}printf %s "$executable" | while IFS= read -r path; do chmod +x "$path"; done
)
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
    if [ "$failed" -ge "$retries" ]; then
        echo "the healthcheck failed $failed times: $command" >&2; exit 1
    fi
    sleep "$interval"
done
"""


def instruction(folder: Path, *, needed: bool) -> str:
    """The instruction for the agent. May be empty if it is not `needed`."""
    path = folder / "instruction.md"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    if needed and not text:
        raise TaskError(
            f"{path} is {'empty' if path.is_file() else 'not there'}. Write what the agent is to do."
        )
    return text


def solution(folder: Path, env: Mapping[str, str]) -> Solution | None:
    """The solution in a folder with a `solve.sh`; None if there is none."""
    return solved_by(bundle(folder), "solve.sh", env) if (folder / "solve.sh").is_file() else None


def solved_by(files: Bundle, script: str, env: Mapping[str, str]) -> Solution:
    """A solution: files for `/solution`, and a script among them that runs in the working folder."""
    laid = {f"{_LAID}/{name}": text for name, text in _values(files).items()}
    executable = "".join(f"{name}\n" for name in files.executable)
    values = [f"{key}={value}" for key, value in env.items()]
    return Solution(laid, (("sh", "-c", _SOLVE, "sh", script, executable, *values),))


def working_files(folder: Path, *waits: tuple[str, ...]) -> tuple[dict[str, str], Setup]:
    """The files for the working folder before a step, and its commands: first `setup.sh`, then `waits`."""
    files = bundle(folder)
    run = [("chmod", "+x", "--", *files.executable)] if files.executable else []
    # Unpacking comes first: the executables and `setup.sh` may need the binary files.
    if files.rest:
        run.insert(0, ("sh", "-ec", _UNPACK))
    if "setup.sh" in files.texts:
        run.append(("sh", "-c", _SETUP))
    return _values(files), Setup((*run, *waits))


def waiting(check: Healthcheck | None) -> tuple[tuple[str, ...], ...]:
    """Commands that wait until a healthcheck succeeds, and fail after its number of retries."""
    if check is None:
        return ()
    times = (check.timeout_sec, check.interval_sec, int(check.start_period_sec), check.start_interval_sec)
    return (("sh", "-c", _WAIT, "sh", *(f"{each:g}" for each in times), str(check.retries), check.command),)


def _values(files: Bundle) -> dict[str, str]:
    """A bundle's files as texts. Files that are not text become one encoded archive."""
    return {**files.texts, **({_PACKED: files.rest} if files.rest else {})}
