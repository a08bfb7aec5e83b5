"""SWE tasks written as SWE-bench rows and read again: the change to the package decides, and no edit of
the tests does.
"""

import re

import pytest

from environments.swe import SweTasks
from harnessgym.grading.grade import judge
from harnessgym.provisioning import equipment_of
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.task_setup.workspace_setup import furnish
from harnessgym.tasks.source import problems_of, task_set
from harnessgym.tasks.writing import convert, task_writer

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
TASKS = {task.id: task for split in ("train", "test") for task in SweTasks().tasks(split)}
BODY = re.compile(r"^([ ]*)(def test\w*\()(?:.|\n)*?\)(?: -> [^\n]*)?:\n", re.MULTILINE)


@pytest.fixture
async def graded(tmp_path, anyio_backend):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:

        async def go(task, files=None, run=()):
            async with backend.open(task.limits, equipment_of(task)) as sandbox:
                await furnish(task, sandbox)
                for path, text in (files or {}).items():
                    await sandbox.write(path, text.encode())
                for command in run:
                    done = await sandbox.exec(command)
                    assert done.ok, done.stderr
                return await judge(
                    task, sandbox, lambda: backend.open(task.limits, equipment_of(task, grades=True))
                )

        yield go


@pytest.mark.parametrize("name", ["semver-001", "inflection-001"])
async def test_only_the_repaired_package_is_rewarded(graded, tmp_path, name):
    before = TASKS[f"swe/{name}"]
    (written,) = convert([before], task_writer("swe_bench"), tmp_path / "out")
    assert written.refused == ""
    again = task_set(str(tmp_path / "out"))
    assert problems_of(again) == ()
    (task,) = again.tasks(before.split)
    gold = await graded(task, task.solution.files, task.solution.run)
    assert (gold.rewards["reward"], gold.tampered) == (1.0, None), gold.evidence
    assert gold.evidence["failing_test_planted"] == "failed"
    assert (await graded(task)).rewards["reward"] == 0.0
    passing = {path: passes(text) for path, text in before.metadata["test_files"].items()}
    found = await graded(task, passing)
    assert (found.rewards["reward"], found.evidence["f2p"][0]) == (0.0, "0")
    assert found.evidence["tests_restored"]


def passes(text):
    """Every test of a file returns before it looks at anything."""
    return BODY.sub(lambda match: f"{match[0]}{match[1]}    return\n", text)
