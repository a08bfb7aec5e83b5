"""Runs a script of the task in a fresh sandbox. The result is its exit code, or one JSON line that it prints.

Where the sandbox offers root, root owns the script, the task's other test files and the script's descriptors.
The script must then run the agent's code as another user (`setpriv`, `su`), who can neither read nor write
them. Without root, the script and the agent's code run as one user. That code can neither trace the script's
shell nor change its text, but the script's other files and the programs that it starts. Tasks for which that
matters say `needs = ["root"]`. So a malformed result counts as the task's fault with root, and as tampering
without.
"""

import io
import tarfile
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from harnessgym.errors import TaskError
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.matching import is_number, parse_json
from harnessgym.sandbox import Capability, ExecResult
from harnessgym.task import Integrity

_LAY = """set -e
umask 077
T=$(mktemp -d)
export TESTS="$T"
tar -xof - -C "$T"
echo "harnessgym: the script starts" >&2
size=$(wc -c <"$T/$1")
if [ "$size" -lt 100000 ]; then exec sh -c "$(cat "$T/$1")" "$T/$1" </dev/null; fi
exec sh "$T/$1" </dev/null
"""
"""Unpacks the test files from stdin into `$TESTS` and becomes the script, whose fd 1 is the result.

The shell gets the script as text: a file could be changed while the shell still reads it. A longer text than
the kernel passes on stays a file.
"""
_STARTED = b"harnessgym: the script starts\n"


class CommandCheck(Check):
    """A shell script of the task's `tests/` folder, run with the workspace as its working directory."""

    integrity: ClassVar[Integrity] = "in_process"
    kind: Literal["command"]
    script: str = "run.sh"
    result: Literal["exit", "json"] = "exit"
    """exit: exit code 0 passes. json: the only line on stdout is `{"reward": x}`, 0 <= x <= 1; 1 passes."""
    timeout_s: float = Field(120.0, gt=0, le=3_600)

    def problems(self, files: Collection[str]) -> Sequence[str]:
        """A script that is missing."""
        return (
            ()
            if self.script in files
            else (f"script: {self.script!r} is not in tests/. Add it, or correct the name.",)
        )

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if the script exits with 0, or, for `result = "json"`, prints the reward 1."""
        async with context.open_sandbox() as sandbox:
            root = Capability.ROOT in sandbox.capabilities
            result = await sandbox.exec(
                ["sh", "-c", _LAY, "sh", self.script],
                user="root" if root else None,
                stdin=_archive(context.files),
                timeout_s=self.timeout_s,
            )
        # If this line is missing, the image lacks a tool, which is the task's fault. A truncated stderr may
        # have lost the line.
        if _STARTED not in result.stderr and not result.stderr_truncated:
            raise TaskError(
                f"{context.where}: the script was not started: {result.describe()}. The image needs sh, "
                f"mktemp "
                "and tar."
            )
        facts = {"root": root}
        if result.timed_out or result.signal is not None:
            return CheckOutcome(False, f"the script did not end by itself: {result.describe()}", facts=facts)
        if self.result == "exit":
            return CheckOutcome(result.exit_code == 0, "" if result.ok else result.describe(), facts=facts)
        return self._read(result, context.where, root=root)

    def _read(self, result: ExecResult, where: str, *, root: bool) -> CheckOutcome:
        reward = _reward(result)
        if isinstance(reward, str):
            if root:
                raise TaskError(f"{where}: {self.script} {reward}; {result.describe()}.")
            return CheckOutcome(
                False, reward, tampered=f"The result of {self.script} cannot be: it {reward}."
            )
        return CheckOutcome(reward == 1.0, f"reward {reward:g}", part=reward, facts={"root": root})


def _reward(result: ExecResult) -> float | str:
    """The reward that a script printed, or what is wrong with it."""
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    if result.stdout_truncated or len(lines) != 1:
        return f"printed {len(lines)} lines on its standard output, not one"
    parsed = parse_json(lines[0])
    if parsed is None or not isinstance(parsed[0], Mapping) or set(parsed[0]) != {"reward"}:
        return f"printed {lines[0][:100]!r}, which is no JSON of one reward"
    reward = parsed[0]["reward"]
    if not is_number(reward) or not 0 <= reward <= 1:
        return f"gave the reward {str(reward)[:50]}, which is no number from 0 to 1"
    # A failing script with a reward contradicts itself, and a crash after the line must not count as a
    # success.
    if reward > 0 and not result.ok:
        return f"gave the reward {reward} and exit code {result.exit_code}"
    return float(reward)


def _archive(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            entry.mode = 0o500
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
