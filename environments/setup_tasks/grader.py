"""Grades a repository that was made to work: `imports`, `collected`, and their product as the reward."""

from pathlib import Path

from environments.setup_tasks.works import Works
from harnessgym.grading.check import CheckContext, read_checks
from harnessgym.grading.verifier import Opener
from harnessgym.task import Grade, Task


class SetupVerifier:
    """Runs the one check of a task, with the task's own files as the shipped ones."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:
        """See `Verifier.verify`."""
        where = f"Task {task.id!r}"
        (check,) = read_checks(task.metadata["tests"], task.metadata["test_files"], where)
        assert isinstance(check, Works)
        outcome = await check.run(CheckContext(workspace, open_sandbox, task.files, where))
        imports = outcome.facts["imports"]
        collected = outcome.facts["collected"]
        channels = {"reward": imports * collected, "imports": imports, "collected": collected}
        return Grade(channels, outcome.tampered, {"works": {"detail": outcome.detail, **outcome.facts}})


verifier = SetupVerifier()
