"""Commands that make what is graded run when the agent is dead, and one that fails is told with the
verdict.
"""

import pytest

from harnessgym.task import Hook

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
CHECK = {"kind": "files", "rules": [{"path": "made.txt", "content": "3"}]}


async def test_what_a_hook_makes_is_graded(bubblewrap, make_task, grade):
    hook = Hook(("sh", "-c", "wc -l < lines.txt > made.txt"))
    task = make_task(CHECK, hooks=(hook,))
    found = await grade(bubblewrap, task, {"lines.txt": "a\nb\nc\n"})
    assert found.rewards == {"reward": 1.0}
    assert "failed_hooks" not in found.evidence


async def test_nothing_of_the_agents_runs_beside_a_hook(bubblewrap, make_task, grade):
    task = make_task(CHECK, hooks=(Hook(("sh", "-c", "echo 3 > made.txt; sleep 1")),))
    spoiler = "setsid sh -c 'while :; do echo 4 > made.txt; done' >/dev/null 2>&1 </dev/null &"
    found = await grade(bubblewrap, task, run=[spoiler])
    assert found.rewards == {"reward": 1.0}


async def test_a_hook_that_fails_is_told_and_what_is_there_is_graded(bubblewrap, make_task, grade):
    hooks = (Hook(("sh", "-c", "echo no such thing >&2; exit 7")), Hook(("sleep", "30"), timeout_s=0.2))
    found = await grade(bubblewrap, make_task(CHECK, hooks=hooks), {"made.txt": "3"})
    assert found.rewards == {"reward": 1.0}
    first, second = found.evidence["failed_hooks"]
    assert "exit status 7: no such thing" in first
    assert "sleep 30: timed out after " in second
