"""Edge cases of grading that belong to no other file: networks, reward files, changes made twice, unsteady
tests.
"""

import pytest

pytestmark = pytest.mark.anyio
ANSWER = {"kind": "files", "rules": [{"path": "answer.txt", "content": "42"}]}
LONELY = """
import socket
for address in (("127.0.0.1", 8080), ("192.0.2.1", 80), ("8.8.8.8", 53)):
    try:
        socket.create_connection(address, 1)
        print("reached", address)
    except OSError:
        pass
print([name for _, name in socket.if_nameindex()])
"""


async def test_a_verifier_has_no_network(backend, grade, make_task):
    task = make_task({"kind": "io", "command": ["python3", "work.py"], "cases": [{"stdout": "['lo']"}]})
    found = await grade(backend, task, {"work.py": LONELY})
    assert (found.rewards, found.tampered) == ({"reward": 1.0}, None), found


async def test_a_command_that_is_to_give_a_reward_and_gives_none_is_no_reward(bubblewrap, grade, make_task):
    """Files of rewards mean nothing, and silence is not zero but a result that is not one."""
    script = "echo 1 >reward.txt; echo '{\"reward\": 1}' >reward.json; mkdir -p logs; cp reward.* logs"
    task = make_task({"kind": "command", "result": "json"}, test_files={"run.sh": script}, score="weighted")
    found = await grade(bubblewrap, task)
    assert found.rewards == {"reward": 0.0}
    assert found.tampered


async def test_a_change_that_was_made_already_may_be_made_again(backend, grade, make_task):
    """What is graded are the files: a patch that the agent could not apply twice is only a file among
    them.
    """
    patch = "--- a/answer.txt\n+++ b/answer.txt\n@@ -1 +1 @@\n-41\n+42\n"
    files = {"answer.txt": "42\n", "fix.patch": patch, "answer.txt.rej": patch}
    found = await grade(
        backend, make_task(ANSWER), files, run=["patch -p1 <fix.patch", "echo 42 >answer.txt"]
    )
    assert (found.rewards, found.tampered) == ({"reward": 1.0}, None)


async def test_one_run_counts_and_a_test_that_fails_now_and_then_is_not_run_again(
    bubblewrap, grade, make_task
):
    """Each run is in a fresh sandbox, so that a second one would fail here again: what counts is that the
    first one did.
    """
    text = "import os\n\n\ndef test_a():\n    seen = os.path.exists('seen')\n    open('seen', 'w').close()\n    assert seen\n"
    check = {"kind": "pytest", "files": ["test_s.py"], "expect": ["test_s.py::test_a"], "timeout_s": 20}
    found = await grade(bubblewrap, make_task(check, test_files={"test_s.py": text}))
    assert (found.rewards, found.tampered) == ({"reward": 0.0}, None)
