"""The shipped shell tasks: each is solved by its gold, and by nothing less, on every backend that
confines.
"""

from contextlib import asynccontextmanager

import pytest

from environments.shell_tasks import ShellTasks
from harnessgym.grading.grade import judge
from harnessgym.registry import load
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure

pytestmark = pytest.mark.anyio
TASKS = [task for split in ("train", "test") for task in ShellTasks().tasks(split)]


TRACES = """\
exec python3 - <<'END'
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ATTACH, DETACH, GETREGS, SETREGS, EXIT_GROUP = 16, 17, 12, 13, 231
def ancestors():
    pid = os.getppid()
    while pid > 1:
        yield pid
        with open("/proc/%d/stat" % pid) as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
for pid in reversed(list(ancestors())):
    if libc.ptrace(ATTACH, pid, None, None):
        continue
    os.waitpid(pid, 0)
    registers = (ctypes.c_ulonglong * 27)()
    libc.ptrace(GETREGS, pid, None, registers)
    # It waits in a call of the kernel. It is to make this one instead: exit_group(0).
    registers[10], registers[15], registers[14] = EXIT_GROUP, 2 ** 64 - 1, 0
    registers[16] -= 2
    libc.ptrace(SETREGS, pid, None, registers)
    libc.ptrace(DETACH, pid, None, None)
END
"""
"""Makes every process above it exit with 0, where it may trace them."""
NOT_ROTATING = {"exits with 0": "exit 0\n", "traces": TRACES, "kills": "kill -9 $PPID; kill -9 -1\n"}


@asynccontextmanager
async def bubblewrap(tmp_path):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


@asynccontextmanager
async def docker(tmp_path):
    ensure(DockerSettings().image, ())
    async with Docker(DockerSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


BACKENDS = [
    pytest.param(bubblewrap, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param(docker, marks=pytest.mark.docker, id="docker"),
]


async def prepare(sandbox, task):
    for path, text in task.files.items():
        await sandbox.write(path, text.encode())
    for command in task.setup.run:
        result = await sandbox.exec(command)
        assert result.ok, result.stderr


async def nothing(sandbox, task):
    pass


async def gold(sandbox, task):
    for path, text in task.solution.files.items():
        await sandbox.write(path, text.encode())
    for command in task.solution.run:
        result = await sandbox.exec(command)
        assert result.ok, result.stderr


async def wrong(sandbox, task):
    """Every artifact there, of the right kind, and empty of sense."""
    for path in task.artifacts:
        if any(name.startswith(f"{path}/") for name in task.files):
            names = [name for name in task.files if name.startswith(f"{path}/")]
        else:
            names = [path]
        for name in names:
            await sandbox.write(name, b"#!/bin/sh\n")
    await sandbox.exec(["chmod", "-R", "+x", "--", *task.artifacts])


async def graded(backend, task, attempt):
    equipment = Equipment(image=task.image or "", proxy=False)
    async with backend.open(task.limits, Equipment(image=task.image or "")) as sandbox:
        await prepare(sandbox, task)
        await attempt(sandbox, task)
        return await judge(task, sandbox, lambda: backend.open(task.limits, equipment))


@pytest.mark.parametrize("open_backend", BACKENDS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
async def test_gold_scores_1_doing_nothing_0_and_nonsense_0(tmp_path, open_backend, task):
    async with open_backend(tmp_path) as backend:
        grade = await graded(backend, task, gold)
        assert (grade.rewards, grade.tampered) == ({"reward": 1.0}, None), grade
        assert grade.evidence["mode"] == "separate"
        for attempt in (nothing, wrong):
            grade = await graded(backend, task, attempt)
            assert (grade.rewards, grade.tampered) == ({"reward": 0.0}, None), grade


@pytest.mark.parametrize("open_backend", BACKENDS)
@pytest.mark.parametrize("script", NOT_ROTATING)
async def test_a_script_that_ends_what_runs_it_is_no_rotation(tmp_path, open_backend, script):
    (task,) = [task for task in TASKS if task.id == "shell/rotate-backups"]

    async def attempt(sandbox, task):
        await sandbox.write("rotate.sh", NOT_ROTATING[script].encode())

    async with open_backend(tmp_path) as backend:
        grade = await graded(backend, task, attempt)
    assert grade.rewards == {"reward": 0.0}, grade


def test_no_shipped_task_is_judged_by_code_of_the_agents_alone():
    """A `command` runs it beside the judging shell, and a `pytest` check in the judging process."""
    for task in TASKS:
        assert {check["kind"] for check in task.metadata["tests"]} & {"io", "call", "files"}, task.id
        assert "command" not in {check["kind"] for check in task.metadata["tests"]}, task.id


def test_the_set_is_registered_and_the_same_each_time():
    tasks = load("task_set", "shell")()
    assert tasks.name == "shell"
    assert [task for split in ("train", "test") for task in tasks.tasks(split)] == TASKS
    assert len({task.id for task in TASKS}) == len(TASKS) >= 10
    assert tasks.tasks("train")
    assert tasks.tasks("test")
    assert {check["kind"] for task in TASKS for check in task.metadata["tests"]} == {
        "call",
        "files",
        "io",
        "pytest",
    }


def test_nothing_that_judges_is_among_what_the_agent_sees():
    for task in TASKS:
        shown = "\n".join([task.instruction, *task.files.values()])
        assert not set(task.metadata["test_files"]) & set(task.files)
        assert not [text for text in task.metadata["test_files"].values() if text in shown]


async def test_the_repository_of_the_hunt_holds_nothing_of_the_future(tmp_path):
    (task,) = [task for task in TASKS if task.id == "shell/regression-hunt"]
    stream = task.files[".history.stream"]
    assert "Ignore caches" in stream
    assert "Long slugs again" not in stream
    assert "with the fix" not in stream
    assert task.metadata["base"] == "aa0891e5167b73b604a634d7f71cc9f0f7ccac0f"
