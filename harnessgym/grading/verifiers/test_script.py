"""Runs the test script of a task in a fresh sandbox, as its format does in a container of its own.

Tests are in `/tests`, results in `/logs/verifier`. The script runs as root in one fresh sandbox. What it
fetches (`apt-get`, `curl`, `uv`, `pip`) was installed in the image beforehand
(`harnessgym.grading.verifiers.tools`). If something is missing, that is the task's fault: there is no reward.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.file_bundle import Bundle
from harnessgym.grading.verifiers.reward_files import MAX_BYTES, Kind, ResultFile
from harnessgym.grading.verifiers.tools import BIN
from harnessgym.sandbox import Capability, ExecResult, Sandbox
from harnessgym.task import OUTSIDE, Task

TESTS = "/tests"
LOGS = "/logs"
_OWN = "/tmp/harnessgym-tests"  # noqa: S108 - in the sandbox
_LAY = f"""set -e
umask 022
rm -rf {LOGS}/verifier "$2"
mkdir -p {LOGS}/verifier {LOGS}/agent {LOGS}/artifacts
mkdir -p -m 700 "$2"
mkdir -p "$2/home/.local/bin"
: > "$2/home/.local/bin/env"
if [ -n "$3" ]; then
    find {TESTS} -mindepth 1 -delete 2>/dev/null || rm -rf {TESTS}/*
    tar -xof - -C {TESTS}
fi
if [ ! -f "{TESTS}/$1" ]; then echo "{TESTS}/$1 is not there" >&2; exit 1; fi
[ -x "{TESTS}/$1" ] || chmod +x "{TESTS}/$1"
if [ -n "$4" ]; then chmod 777 {LOGS}/verifier "$2" "$2/home"; chmod -R a+rX {TESTS} {LOGS}; fi
outside=$5; shift 5
for path; do
    [ -e "$outside$path" ] || continue
    mkdir -p "${{path%/*}}"
    rm -rf "$path"
    cp -a "$outside$path" "$path"
done
rm -rf "$outside"
"""
_RUN = f"""if [ -d {BIN} ]; then PATH="{BIN}:$PATH"; fi
export PATH
exec "{TESTS}/$1" </dev/null
"""
_CLEAR = f"""rm -rf "$1"
for folder in {LOGS}/verifier ${{2:+{TESTS}}}; do
    [ -d "$folder" ] || continue
    find "$folder" -mindepth 1 -delete 2>/dev/null || rm -rf "$folder"/*
    if [ -n "$(ls -A "$folder")" ]; then echo "$folder cannot be emptied" >&2; exit 1; fi
done
"""
_READ = """[ -L "$1" ] && exit 41
[ -e "$1" ] || exit 40
[ -d "$1" ] && exit 42
[ -f "$1" ] || exit 43
exec head -c "$2" "$1"
"""
_KINDS: dict[int | None, Kind] = {0: "file", 40: "missing", 41: "link", 42: "folder", 43: "special"}
_STEP_S = 120.0
_TAIL = 4_000


class VerifierScript(Config):
    """The test script in a task's metadata. `test_files`, beside it, has the text files for `/tests`."""

    script: str = "test.sh"
    """Path below `/tests`."""
    laid: bool = True
    """Whether tests are copied into the sandbox; else the image for grading contains them."""
    rest: str = ""
    """Test files that are not text (`harnessgym.file_bundle`)."""
    executable: tuple[str, ...] = ()
    """Test files with the executable bit."""
    env: Mapping[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(600.0, gt=0)
    root: bool = True
    """Whether it runs as root if the sandbox offers root; else as the agent's user."""


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """How a test script ended."""

    ended: ExecResult
    root: bool
    missing: tuple[str, ...] = ()
    """What it tried to fetch that the image lacks."""

    @property
    def evidence(self) -> dict[str, Any]:
        """As JSON values."""
        done = self.ended
        output = (done.stdout + done.stderr)[-_TAIL:].decode(errors="replace")
        facts = {
            "exit_code": done.exit_code,
            "seconds": round(done.wall_s, 3),
            "root": self.root,
            "output": output,
        }
        return {**facts, **({"signal": done.signal} if done.signal is not None else {})}


def script_of(task: Task, key: str) -> VerifierScript:
    """Reads the test script from a task's metadata. Raises TaskError."""
    try:
        return validate(VerifierScript, task.metadata.get(key, {}), f"Task {task.id!r}: metadata.{key}")
    except ConfigError as error:
        raise TaskError(str(error)) from error


async def run_script(sandbox: Sandbox, test: VerifierScript, task: Task) -> ScriptRun:
    """Copies the tests into the sandbox and runs their script in the workspace, up to its time limit.

    Raises TaskError when the tests cannot be copied, SandboxError when the sandbox failed.
    """
    root = Capability.ROOT in sandbox.capabilities
    user = "root" if root else None
    where = f"Task {task.id!r}"
    flags = ("yes" if test.laid else "", "" if test.root else "yes")
    # In the shared sandbox, collected paths are still where the agent left them.
    collected = task.collect if task.verifier == "separate" else ()
    argv = ["sh", "-c", _LAY, "sh", test.script, _OWN, *flags, OUTSIDE, *collected]
    tests = Bundle(task.metadata.get("test_files", {}), test.rest, test.executable)
    # A command of its own as root, before the script: it also empties `/logs/verifier`, so that no reward
    # file of the agent's is there when the script starts.
    laid = await sandbox.exec(
        argv, user=user, stdin=tests.archive() if test.laid else None, timeout_s=_STEP_S
    )
    if not laid.ok:
        raise TaskError(f"{where}: the tests could not be copied into {TESTS}: {laid.describe()}.")
    missing = f"{_OWN}/missing"
    env = {"HOME": f"{_OWN}/home", "HARNESSGYM_MISSING": missing, **test.env}
    runs_as = user if test.root else None
    ended = await sandbox.exec(
        ["sh", "-c", _RUN, "sh", test.script], user=runs_as, env=env, timeout_s=test.timeout_s
    )
    asked = await look(sandbox, missing)
    names = tuple(dict.fromkeys(asked.data.decode(errors="replace").splitlines()))
    return ScriptRun(ended, root and test.root, names)


async def clear(sandbox: Sandbox, test: VerifierScript, where: str) -> None:
    """Removes tests and results from a sandbox that an agent may use again. Raises TaskError."""
    user = "root" if Capability.ROOT in sandbox.capabilities else None
    argv = ["sh", "-c", _CLEAR, "sh", _OWN, "yes" if test.laid else ""]
    done = await sandbox.exec(argv, user=user, timeout_s=_STEP_S)
    if not done.ok:
        raise TaskError(f"{where}: tests and results could not be removed: {done.describe()}.")


async def look(sandbox: Sandbox, path: str) -> ResultFile:
    """Reads the file at an absolute path in the sandbox, after all processes have ended. Follows no link."""
    root = Capability.ROOT in sandbox.capabilities
    argv = ["sh", "-c", _READ, "sh", path, str(MAX_BYTES + 1)]
    done = await sandbox.exec(
        argv, user="root" if root else None, timeout_s=_STEP_S, max_output=MAX_BYTES + 1
    )
    if done.exit_code not in _KINDS or done.timed_out:
        raise TaskError(f"{path} could not be read: {done.describe()}. The image needs sh and head.")
    kind = _KINDS[done.exit_code]
    return ResultFile(kind, done.stdout if kind == "file" else b"")


def complete(run: ScriptRun, test: VerifierScript, where: str) -> None:
    """Raises TaskError if the image lacks something that the script fetched: its result means nothing."""
    if run.missing:
        raise TaskError(
            f"{where}: {test.script} asked for {'; '.join(run.missing[:8])[:1_000]}, and nothing can be "
            "fetched while grading. Packages that its lines name literally are installed in the image "
            "beforehand; "
            "add the others to the task's image."
        )
