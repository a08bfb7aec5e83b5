"""The verifier of Harbor tasks: `/tests/test.sh` in a fresh sandbox, and the reward files that it writes.

What the agent left is in the workspace. `/logs/verifier` starts empty, so a reward that the agent wrote there
is gone. The script's exit code is recorded and otherwise ignored, as in Harbor. A script that times out means
that the agent's code hung: reward 0. A missing or malformed result is a TaskError.

As under Harbor, the script may run the agent's code with its own rights, and such code can write the reward
file itself. Tests that must be safe from that run the code as another user, or compare its output.
"""

from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.grading.verifier import Opener
from harnessgym.grading.verifiers.reward_files import result
from harnessgym.grading.verifiers.test_script import LOGS, clear, complete, look, run_script, script_of
from harnessgym.task import Grade, Task

KEY = "harbor"
"""Key of the `VerifierScript` in a task's metadata."""


class HarborVerifier:
    """Runs a Harbor task's test script. See the module."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:  # noqa: ARG002
        """See `Verifier.verify`."""
        test = script_of(task, KEY)
        where = f"Task {task.id!r}"
        async with open_sandbox() as sandbox:
            run = await run_script(sandbox, test, task)
            reward_files = [
                await look(sandbox, f"{LOGS}/verifier/{name}") for name in ("reward.json", "reward.txt")
            ]
            # In the shared sandbox, the agent of the next step must not find the tests and results.
            if task.verifier == "shared":
                await clear(sandbox, test, where)
        if run.ended.timed_out:
            return Grade({"reward": 0.0}, evidence={**run.evidence, "timed_out": True})
        complete(run, test, where)
        try:
            read = result(*reward_files)
        except TaskError as error:
            output = run.evidence["output"].strip()[-1_000:] or "(nothing)"
            raise TaskError(
                f"{where}: {error} The script ended with {run.ended.exit_code}; its output: {output}"
            ) from error
        facts = {"reward_file": read.source, **({"remark": read.remark} if read.remark else {})}
        return Grade(dict(read.rewards), evidence={**run.evidence, **facts})


verifier = HarborVerifier()
