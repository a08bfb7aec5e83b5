"""A workspace is prepared in a real sandbox: files, set-up commands in order, and a solution."""

import pytest

from harnessgym.errors import TaskError
from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.task_setup.workspace_setup import furnish, set_up, solve

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox(tmp_path, anyio_backend):
    settings = ProcessSettings(workspace_root=tmp_path / "w")
    async with ProcessBackend(settings) as backend, backend.open(Limits()) as opened:
        yield opened


def script(*lines, **fields):
    return Setup(tuple(("sh", "-c", line) for line in lines), **fields)


async def test_commands_run_in_order_until_one_fails(sandbox):
    with pytest.raises(RolloutFailed) as error:
        await set_up(script("echo 1 >> log", "echo 2 >> log; exit 3", "echo 3 >> log"), sandbox, "task 't'")
    assert await sandbox.read("log") == b"1\n2\n"
    assert error.value.cause is Cause.SETUP_FAILED


async def test_a_failure_names_the_command_the_task_and_the_last_output(sandbox):
    with pytest.raises(RolloutFailed) as error:
        await set_up(script("echo begins; echo broken >&2; exit 3"), sandbox, "task 't'")
    message = str(error.value)
    assert "The setup command `sh -c echo begins; echo broken >&2; exit 3` of task 't' failed" in message
    assert "3" in message
    assert "broken" in message.partition("Its last output:\n")[2]


async def test_a_command_that_hangs_names_the_limit_of_the_whole_setup(sandbox):
    with pytest.raises(RolloutFailed, match="it did not end within the 1 s that setup may take"):
        await set_up(script("exec sleep 0.2", "exec sleep 60", timeout_s=1.0), sandbox, "task 't'")


async def test_files_are_written_before_the_setup_which_is_timed(sandbox):
    task = Task("t", "x", files={"a/in.txt": "41"}, setup=script("echo $(($(cat a/in.txt) + 1)) > out.txt"))
    seconds = await furnish(task, sandbox)
    assert await sandbox.read("out.txt") == b"42\n"
    assert 0 < seconds < 60


async def test_without_setup_no_time_is_told(sandbox):
    assert await furnish(Task("t", "x", files={"a": "1"}), sandbox) is None
    assert await sandbox.read("a") == b"1"


async def test_a_setup_that_fails_names_its_task(sandbox):
    with pytest.raises(RolloutFailed, match="of task 'set/one' failed"):
        await furnish(Task("set/one", "x", setup=script("false")), sandbox)


async def test_a_solution_is_laid_over_the_files_and_run(sandbox):
    solution = Solution({"a": "2"}, (("sh", "-c", "cat a a > b"), ("touch", "c")))
    task = Task("t", "x", files={"a": "1"}, solution=solution)
    await furnish(task, sandbox)
    await solve(task, sandbox)
    assert [await sandbox.read(name) for name in ("a", "b", "c")] == [b"2", b"22", b""]


async def test_a_command_of_a_solution_that_fails_is_the_tasks_fault(sandbox):
    solution = Solution(run=(("sh", "-c", "echo no >&2; exit 4"), ("touch", "never")))
    with pytest.raises(TaskError, match="The gold command 'sh -c echo no >&2; exit 4' failed") as error:
        await solve(Task("t", "x", solution=solution), sandbox)
    assert "no" in str(error.value).partition("failed")[2]
    with pytest.raises(FileNotFoundError):
        await sandbox.read("never")


async def test_a_task_without_a_solution_is_left_as_it_is(sandbox):
    await solve(Task("t", "x"), sandbox)
    result = await sandbox.exec(["ls", "-A"], timeout_s=20)
    assert result.stdout == b""
