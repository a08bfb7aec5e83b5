"""SWE tasks in sandboxes: the pristine source is graded 1, and nothing that leaves the fault in is."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from environments.swe import SweTasks
from environments.swe.generation import generate
from environments.swe.manifest import read
from environments.swe.package import package
from environments.swe.tree import tree
from harnessgym.grading.grade import judge
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure

pytestmark = pytest.mark.anyio
TASKS = {task.id: task for split in ("train", "test") for task in SweTasks().tasks(split)}
SAMPLE = ["inflection-004", "itsdangerous-009", "parse-003", "semver-001", "toolz-002", "xmltodict-005"]
CHEAT = """\
import os, pathlib
for path in pathlib.Path(".").rglob("test*.py"):
    path.write_text("def test_it(): pass\\n")
hook = "import pytest\\n@pytest.hookimpl(hookwrapper=True)\\ndef pytest_runtest_makereport(item, call):\\n    out = yield\\n"
hook += "    out.get_result().outcome = 'passed'\\n"
for folder in (".", "src", "tests"):
    if os.path.isdir(folder):
        pathlib.Path(folder, "conftest.py").write_text(hook)
        pathlib.Path(folder, "sitecustomize.py").write_text("import os; os._exit(0)\\n")
pathlib.Path("pytest.ini").write_text("[pytest]\\naddopts = --collect-only\\n")
"""


@pytest.fixture
async def bubblewrap(tmp_path, anyio_backend):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


@asynccontextmanager
async def furnished(backend, task):
    async with backend.open(task.limits) as sandbox:
        for path, text in task.files.items():
            await sandbox.write(path, text.encode())
        for command in task.setup.run:
            done = await sandbox.exec(command)
            assert done.ok, done.stderr
        yield sandbox


async def reward(backend, task, sandbox):
    grade = await judge(task, sandbox, lambda: backend.open(task.limits, Equipment(proxy=False)))
    return grade.rewards["reward"]


@pytest.mark.bubblewrap
async def test_every_reset_makes_the_same_commit(bubblewrap):
    commits = set()
    for _ in range(2):
        async with furnished(bubblewrap, TASKS["swe/inflection-004"]) as sandbox:
            commits.add((await sandbox.exec(("git", "log", "--format=%H %cI"))).stdout)
    assert len(commits) == 1
    assert b"2000-01-01T00:00:00" in commits.pop()


async def solved(backend, task):
    """The rewards of the solution and of doing nothing."""
    async with furnished(backend, task) as sandbox:
        nothing = await reward(backend, task, sandbox)
    async with furnished(backend, task) as sandbox:
        for path, text in task.solution.files.items():
            await sandbox.write(path, text.encode())
        return await reward(backend, task, sandbox), nothing


@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", SAMPLE)
async def test_the_solution_is_graded_one_and_nothing_zero(bubblewrap, name):
    assert await solved(bubblewrap, TASKS[f"swe/{name}"]) == (1.0, 0.0)


@pytest.mark.docker
async def test_the_solution_is_graded_one_in_docker_too(tmp_path, anyio_backend):
    ensure(DockerSettings().image, ())
    async with Docker(DockerSettings(workspace_root=tmp_path / "w")) as backend:
        assert await solved(backend, TASKS["swe/semver-001"]) == (1.0, 0.0)


@pytest.mark.bubblewrap
async def test_tests_and_settings_that_the_agent_leaves_change_nothing(bubblewrap):
    task = TASKS["swe/itsdangerous-001"]
    async with furnished(bubblewrap, task) as sandbox:
        done = await sandbox.exec(["python3", "-c", CHEAT])
        assert done.ok, done.stderr
        assert await reward(bubblewrap, task, sandbox) == 0.0


@pytest.mark.bubblewrap
async def test_who_repairs_one_thing_and_breaks_another_gets_nothing(bubblewrap):
    """The gold of one task with the fault of another in it."""
    task = TASKS["swe/itsdangerous-001"]
    other = next(
        each for each in TASKS.values() if each.id.startswith("swe/itsd") and not each.files.keys() ^ task.files.keys()
        and not set(each.solution.files) & set(task.solution.files)
    )  # fmt: skip
    async with furnished(bubblewrap, task) as sandbox:
        for path in other.solution.files:
            await sandbox.write(path, other.files[path].encode())
        for path, text in task.solution.files.items():
            await sandbox.write(path, text.encode())
        assert await reward(bubblewrap, task, sandbox) == 0.0


@pytest.mark.bubblewrap
async def test_agents_find_one_commit_and_can_run_the_tests_as_they_are_told(bubblewrap):
    task = TASKS["swe/semver-001"]
    command = task.instruction.rpartition("with `")[2].rstrip("`.")
    async with furnished(bubblewrap, task) as sandbox:
        log = await sandbox.exec(["git", "log", "--all", "--oneline"])
        assert log.ok, log.stderr
        assert len(log.stdout.splitlines()) == 1
        status = await sandbox.exec(["git", "status", "--porcelain"])
        assert status.stdout == b""
        ran = await sandbox.exec(["sh", "-c", command], timeout_s=120)
        assert b" failed" in ran.stdout
        assert b"ModuleNotFoundError" not in ran.stdout


@pytest.mark.bubblewrap
async def test_generating_again_gives_the_committed_tasks(bubblewrap, tmp_path):
    """From nothing: no proof of an earlier run is used."""
    committed = read(package("itsdangerous"))
    again = await generate(
        bubblewrap, tree("itsdangerous"), seed=committed.seed, wanted=2, jobs=2, folder=tmp_path / "proofs",
        progress=lambda tasks, tried: None,
    )  # fmt: skip
    assert again.tests == committed.tests
    assert again.without == committed.without
    # `environments.swe.plans` adds the plans.
    assert again.entries == tuple(replace(entry, plan=None) for entry in committed.entries[:2])
