"""A grader that gives every workspace the full reward, as one whose tests were fooled does."""

from pathlib import Path

from harnessgym.grading.verifier import Opener
from harnessgym.task import Grade, Task


class TrustingGrader:
    """Looks at nothing. What remains is judging by value."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:
        return Grade({"reward": 1.0})


verifier = TrustingGrader()
