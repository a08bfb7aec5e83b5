"""Graders that put a file where a folder was, which nobody can remove as a folder then."""

from dataclasses import replace

from harnessgym.task import Grade
from tests.harnessgym.rollout import stepped
from tests.harnessgym.rollout.tiny import Tiny, grade

HERE = "tests.harnessgym.rollout.barring"


def bar(folder):
    folder.rename(folder.with_name(f"{folder.name}-moved"))
    folder.write_text("in the way")


def barring_evidence(task, workspace):
    given = stepped.grade(task, workspace) if "common" in task.metadata else grade(task, workspace)
    bar(workspace.parent)
    return given


class Barring:
    """Bars the sandbox that it grades in."""

    async def verify(self, task, workspace, place):
        async with place() as sandbox:
            done = await sandbox.exec(["test", "-s", "answer.txt"])
            bar(sandbox.workspace.parent)
        return Grade({"reward": float(done.ok)})


barring_sandbox = Barring()


class Barred(Tiny):
    grader, verifier = "barring_evidence", "separate"

    def tasks(self, split):
        grader = f"{HERE}:{self.grader}"
        return [replace(task, grader=grader, verifier=self.verifier) for task in super().tasks(split)]


class BarredGrading(Barred):
    grader = "barring_sandbox"


class BarredAgent(BarredGrading):
    verifier = "shared"


class BarredSteps(stepped.Stepped):
    """What is taken out for grading is taken once for each step."""

    steps = tuple(stepped.step(name, stepped.rewarded(name, reward=1.0)) for name in ("first", "second"))

    def tasks(self, split):
        return [replace(task, grader=f"{HERE}:barring_evidence") for task in super().tasks(split)]
