"""How an episode's commands are run: what a sandbox that does not answer comes to."""

import asyncio

import pytest

from environments.workspace.shell import ResidentShell
from harnessgym.errors import SandboxError

pytestmark = pytest.mark.anyio


class Deaf:
    """A sandbox where nothing ever begins."""

    ended = 0

    async def exec(self, argv, **options):
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


async def test_a_runner_that_is_never_heard_of_is_an_error_and_is_ended():
    sandbox = Deaf()
    shell = ResidentShell(sandbox, {}, start_s=0.2)
    for attempt in (1, 2):
        async with asyncio.timeout(60.0):
            with pytest.raises(SandboxError, match="did not connect within"):
                await shell.run("true", 1.0)
        assert sandbox.ended == attempt
    await shell.aclose()
