"""A patch that cannot be applied in time: whose fault that is."""

import pytest

from harnessgym.errors import SandboxError
from harnessgym.grading import change
from harnessgym.sandbox import Equipment
from harnessgym.task import Limits, Task

pytestmark = pytest.mark.anyio
LIMITS = Limits(wall_s=60, memory_mb=512, disk_mb=64)


@pytest.fixture
def apply(backend, monkeypatch):
    """Applies a patch by a command in place of `git apply`, with two seconds for it."""
    monkeypatch.setattr(change, "_STEP_S", 2.0)

    async def go(command):
        task = Task("t", "", limits=LIMITS)
        async with backend.open(LIMITS, Equipment(proxy=False)) as sandbox:
            assert (await sandbox.exec(["git", "init", "-q", "."])).ok
            return await change.apply(task, sandbox, b"no patch\n", (command,))

    return go


async def test_a_command_that_waits_is_a_fault_of_the_machine(apply):
    """A reward of 0 would blame the agent for a disk that is too slow."""
    with pytest.raises(SandboxError, match="A patch could not be applied for task 't': timed out"):
        await apply("tail -f")


async def test_a_command_that_computes_is_kept_busy_by_the_patch(apply):
    assert await apply("python3 -c while(True):pass") is None
