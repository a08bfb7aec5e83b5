"""Runs an evaluation script in a workspace and reads its log as hostile data.

A failure of the environment is an error, not a result.
"""

import secrets
from dataclasses import dataclass

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.log import Parser, text_of
from harnessgym.grading.verifiers.eval_log import END, START, Reading, instrumented, read_log
from harnessgym.sandbox import ExecResult, Sandbox
from harnessgym.task import Task

EVAL_S = 1_800.0
"""Seconds for a script, as in SWE-bench."""
_MOST = 48 << 20
"""Bytes that are kept of a log, from its end."""
_SCRIPT = "/tmp/harnessgym-eval.sh"  # noqa: S108  private to the sandbox
_NO_SHELL = (126, 127)
_TAIL = 2_000


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """How a script ended."""

    reading: Reading
    tail: str
    """The end of its output."""
    wall_s: float


async def evaluate(
    task: Task,
    sandbox: Sandbox,
    script: str,
    parser: Parser,
    timeout_s: float = EVAL_S,
    *,
    exit_code_decides: bool = True,
) -> EvaluationRun:
    """Runs `script` with bash in the workspace, as the agent's user. For `exit_code_decides` see `read_log`.

    Raises TaskError for a script or an image that cannot work, SandboxError when the environment failed.
    """
    if START not in script or END not in script:
        raise TaskError(
            f"The evaluation script of task {task.id!r} does not mark its tests' output. Print {START!r} and "
            f"{END!r}."
        )
    nonce = secrets.token_hex(16)
    result = await _run(sandbox, instrumented(script, nonce), timeout_s)
    log = text_of(result.stdout)
    tail = log[-_TAIL:]
    # Only the end of a long log is kept, so the start marker may be cut off. What is left is the tests'
    # output.
    if result.stdout_truncated and f"{START} {nonce}" not in log:
        log = f"{START} {nonce}\n{log}"
    if result.timed_out:
        return EvaluationRun(
            Reading(problem=f"the tests did not end within {timeout_s:.0f} s"), tail, result.wall_s
        )
    if not result.stdout_truncated and START not in log and result.exit_code in _NO_SHELL:
        raise TaskError(
            f"The evaluation script of task {task.id!r} could not be run: {tail.strip() or 'no output'}. It "
            "needs bash."
        )
    reading = read_log(log, parser, nonce, exit_code_decides=exit_code_decides)
    if reading.problem and reading.cause == "environment":
        raise SandboxError(
            f"The tests of task {task.id!r} gave no result: {reading.problem}. The end of the log:\n{tail}"
        )
    return EvaluationRun(reading, tail, result.wall_s)


async def _run(sandbox: Sandbox, script: str, timeout_s: float) -> ExecResult:
    """Writes and runs the script in one command, because the next command may see a different `/tmp`."""
    command = ["sh", "-c", 'cat >"$0" && exec bash "$0" 2>&1 </dev/null', _SCRIPT]
    return await sandbox.exec(command, stdin=script.encode(), timeout_s=timeout_s, max_output=_MOST)
