"""From a sandbox to a verdict: what is taken, what is tampering, and what is no verdict at all."""

import math

import pytest

from harnessgym.errors import CapabilityError, HarnessGymError, SandboxError, TaskError
from harnessgym.grading.grade import checked_rewards, judge
from harnessgym.sandbox import Capability, Equipment, needs, require
from harnessgym.task import Grade, Limits, Task

pytestmark = pytest.mark.anyio
ANSWER = {"kind": "files", "rules": [{"path": "answer.txt", "content": "42"}]}


GRADERS = "tests.harnessgym.grading.graders"


async def test_right_and_wrong_answers(backend, grade, make_task):
    found = await grade(backend, make_task(ANSWER), {"answer.txt": "42\n"})
    assert found.rewards == {"reward": 1.0}
    assert found.evidence["mode"] == "separate"
    assert "warning" not in found.evidence
    assert (await grade(backend, make_task(ANSWER), {"answer.txt": "41\n"})).rewards == {"reward": 0.0}


async def test_an_empty_change_scores_0(backend, grade, make_task):
    assert (await grade(backend, make_task(ANSWER))).rewards == {"reward": 0.0}


async def test_binary_and_crlf_files_are_data(backend, grade, make_task):
    junk = bytes(range(256)) * 40
    assert (await grade(backend, make_task(ANSWER), {"answer.txt": junk})).rewards == {"reward": 0.0}
    assert (await grade(backend, make_task(ANSWER), {"answer.txt": b"42\r\n", "junk.bin": junk})).rewards == {
        "reward": 1.0
    }


async def test_agent_timeout_is_graded(backend, grade, make_task):
    """The grade command of the fixture kills after 10 s: what was written before counts."""
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo 42 >answer.txt; sleep 60"], timeout_s=1)
        assert result.timed_out
        found = await judge(
            make_task(ANSWER), sandbox, lambda: backend.open(Limits(), Equipment(proxy=False))
        )
    assert found.rewards == {"reward": 1.0}


async def test_sandbox_death_is_no_verdict(backend, make_task):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("answer.txt", b"42")
    with pytest.raises(SandboxError):
        await judge(make_task(ANSWER), sandbox, lambda: backend.open(Limits(), Equipment(proxy=False)))


async def test_the_death_of_a_grading_sandbox_is_no_verdict(bubblewrap, grade, make_task):
    task = make_task({"kind": "io", "command": ["true"], "cases": [{"exit_code": 0}]})
    async with bubblewrap.open(Limits()) as sandbox, bubblewrap.open(Limits()) as dead:
        await dead.aclose()

        class Dead:
            async def __aenter__(self):
                return dead

            async def __aexit__(self, *ended):
                return None

        await sandbox.write("answer.txt", b"42")
        with pytest.raises(SandboxError, match="closed"):
            await judge(task, sandbox, Dead)


@pytest.mark.parametrize(
    "trap", ["ln -s /etc/passwd answer.txt", "mkfifo answer.txt", "ln -s answer.txt answer.txt"]
)
async def test_an_artifact_that_is_a_trap_is_tampering(backend, grade, make_task, trap):
    found = await grade(backend, make_task(ANSWER, artifacts=("answer.txt",)), run=[trap])
    assert found.rewards == {"reward": 0.0}
    assert "answer.txt" in found.tampered


async def test_traps_elsewhere_are_left_out_and_named(backend, grade, make_task):
    traps = ["ln -s / root; mkfifo pipe; ln -s ../../.. up; mkdir -p deep; ln -s ../answer.txt deep/good"]
    found = await grade(backend, make_task(ANSWER), {"answer.txt": "42"}, run=traps)
    assert (found.rewards, found.tampered) == ({"reward": 1.0}, None)
    assert set(found.evidence["left_out"]) == {"root", "pipe", "up"}


async def test_too_much_is_tampering(bubblewrap, grade, make_task):
    small = Limits(disk_mb=1)
    found = await grade(
        bubblewrap, make_task(ANSWER, limits=small), {"answer.txt": "42", "big": b"x" * (2 << 20)}
    )
    assert found.rewards == {"reward": 0.0}
    assert "passes what is graded" in found.tampered


async def test_only_artifacts_are_taken(bubblewrap, grade):
    task = Task("t", "", grader=f"{GRADERS}:looking", artifacts=("answer.txt", "out/deep", "missing"))
    files = {"answer.txt": "1", "secret": "2", "out/deep/a": "3", "out/other": "4"}
    found = await grade(bubblewrap, task, files)
    assert found.evidence["seen"] == ["answer.txt", "out", "out/deep", "out/deep/a"]
    assert found.rewards == {"reward": 1.0, "files": 4.0}


async def test_an_artifact_is_not_reached_through_a_link(bubblewrap, grade):
    task = Task("t", "", grader=f"{GRADERS}:looking", artifacts=("out/answer.txt",))
    found = await grade(bubblewrap, task, {"real/answer.txt": "1"}, run=["ln -s real out"])
    assert found.evidence["seen"] == []


async def test_nothing_that_the_agent_started_outlives_it(backend, grade, make_task):
    daemon = "(setsid sh -c 'while :; do echo 42 >answer.txt; sleep 0.05; done' >/dev/null 2>&1 &) ; echo 41 >answer.txt"
    found = await grade(backend, make_task(ANSWER), run=[daemon, "sleep 0.3; echo 41 >answer.txt"])
    assert found.rewards == {"reward": 0.0}


async def test_shared_grading_happens_in_the_agents_sandbox_and_says_so(backend, grade, make_task):
    check = {"kind": "io", "command": ["cat", "left.txt"], "cases": [{"stdout": "here"}]}
    task = make_task(check, verifier="shared", artifacts=("nothing",))
    found = await grade(backend, task, {"left.txt": "here"})
    assert found.rewards == {"reward": 1.0}
    assert found.evidence["mode"] == "shared"
    assert "the sandbox that the agent used" in found.evidence["warning"]
    separate = await grade(backend, make_task(check, artifacts=("nothing",)), {"left.txt": "here"})
    assert separate.rewards == {"reward": 0.0}


async def test_a_verifier_that_needs_network_finds_none(backend, grade, make_task):
    program = (
        "import socket\n"
        "for host, port in (('127.0.0.1', 8080), ('1.1.1.1', 53), ('10.0.0.1', 80)):\n"
        "    try:\n        socket.create_connection((host, port), 2).close(); print('reached', host)\n"
        "    except OSError:\n        pass\nprint('end')\n"
    )
    task = make_task({"kind": "io", "command": ["python3", "-c", program], "cases": [{"stdout": "end"}]})
    assert (await grade(backend, task)).rewards == {"reward": 1.0}


async def test_executable_files_links_and_empty_folders_arrive(backend, grade, make_task):
    left = "mkdir -p bin 'an empty one' deep; ln -s ../bin/tool deep/link; "
    left += "printf '#!/bin/sh\\necho ran\\n' >bin/tool; chmod +x bin/tool"
    look = "deep/link && test -L deep/link && test -d 'an empty one' && test ! -x plain.txt && test \"$(id -u)\" != 0 && echo all"
    task = make_task({"kind": "io", "command": ["sh", "-c", look], "cases": [{"stdout": "ran\nall"}]})
    found = await grade(backend, task, {"plain.txt": "x"}, run=[left])
    assert found.rewards == {"reward": 1.0}, found


async def test_strange_names_arrive_as_they_are(backend, grade, make_task):
    program = """
import os
names = [b"-rf", b"new\\nline", b"\\xff\\xfe", b"a'b\\"c$d", b"x" * 250, "\u00fc".encode()]
if not os.path.exists("made"):
    for name in names:
        os.mkdir(b"dir-" + name[:200])
        open(name, "w").write("1")
        os.symlink(name, b"link-" + name[:200])
        os.symlink(b"../" + name, b"dir-" + name[:200] + b"/" + name)
    open("made", "w")
else:
    print(all(open(b"link-" + name[:200]).read() == "1" == open(b"dir-" + name[:200] + b"/" + name).read() for name in names))
"""
    task = make_task({"kind": "io", "command": ["python3", "-c", program], "cases": [{"stdout": "True"}]})
    found = await grade(backend, task, {"make.py": program}, run=["python3 make.py"])
    assert (found.rewards, found.evidence.get("left_out")) == ({"reward": 1.0}, None), found


async def test_many_links_and_folders_are_no_excuse(backend, grade, make_task):
    """None of this makes the grader fail; what it makes of it is its business."""
    program = (
        "import os\nfor i in range(500):\n    os.symlink('answer.txt', f'l{i}')\n    os.mkdir(f'd{i}')\n"
    )
    task = make_task(ANSWER, {"kind": "io", "command": ["cat", "l499"], "cases": [{"stdout": "42"}]})
    found = await grade(backend, task, {"answer.txt": "42", "make.py": program}, run=["python3 make.py"])
    assert found.rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    "fill",
    [
        "head -c 200m /dev/zero >big",
        "i=0; while [ $i -lt 2500 ] && head -c 9000 /dev/zero >f$i; do i=$((i + 1)); done",
    ],
)
async def test_a_full_disk_is_no_infrastructure_error(backend, grade, make_task, fill):
    task = make_task(
        {"kind": "io", "command": ["true"], "cases": [{"exit_code": 0}]}, limits=Limits(disk_mb=16, wall_s=20)
    )
    found = await grade(backend, task, run=[fill])
    assert found.rewards["reward"] in (0.0, 1.0)


@pytest.mark.parametrize(
    ("rewards", "named"),
    [
        ({}, 'no channel "reward"'),
        ({"other": 1.0}, 'no channel "reward"'),
        ({"reward": math.nan}, "nan"),
        ({"reward": 1e309}, "inf"),
        ({"reward": True}, "True"),
        ({"reward": [1.0]}, r"\[1.0\]"),
        ({"reward": "1"}, "'1'"),
        ({"reward": None}, "None"),
        ({"reward": 10**400}, "000"),
        ({"reward": 1.0, "style": False}, "style"),
        (None, "mapping"),
        (1.0, "mapping"),
    ],
)
async def test_no_empty_nan_infinite_bool_or_list_reward_is_a_verdict(bubblewrap, grade, rewards, named):
    task = Task("t", "", grader=f"{GRADERS}:giving", metadata={"grade": Grade(rewards)})
    with pytest.raises(TaskError, match=named) as error:
        await grade(bubblewrap, task)
    assert "'t'" in str(error.value)


async def test_a_grader_that_fails_is_no_verdict(bubblewrap, grade):
    with pytest.raises(TaskError, match="KeyError"):
        await grade(bubblewrap, Task("t", "", grader=f"{GRADERS}:failing"))
    with pytest.raises(TaskError, match=r"gives a `harnessgym\.task\.Grade`"):
        await grade(bubblewrap, Task("t", "", grader=f"{GRADERS}:giving", metadata={"grade": 1.0}))
    with pytest.raises(HarnessGymError, match="no module"):
        await grade(bubblewrap, Task("t", "", grader="no_such_module:grade"))


def test_tampering_has_no_reward():
    task = Task("t", "")
    assert checked_rewards(Grade({"reward": 1.0, "style": 1.0}, "why"), task) == {"reward": 0.0, "style": 0.0}
    assert checked_rewards(Grade({}, "why"), task) == {"reward": 0.0}
    assert checked_rewards(Grade({"reward": 1, "style": 0.5}), task) == {"reward": 1.0, "style": 0.5}


@pytest.mark.parametrize(
    ("declared", "rewards", "named"),
    [
        (None, {"reward": 1e300}, "outside of the range 0 to 1"),
        (None, {"reward": 1.0000001}, "outside of the range 0 to 1"),
        (None, {"reward": -0.1}, "outside of the range 0 to 1"),
        ([-1, 5], {"reward": 5.5}, "outside of the range -1 to 5"),
        ([-1, 5], {"reward": 0.5, "bytes": -2e9}, "'bytes'; the most is 1e"),
        ([1, 1], {"reward": 1.0}, "less than the second"),
        ([0, 1e300], {"reward": 1.0}, "neither beyond"),
        ([0, math.nan], {"reward": 1.0}, "Give the least and the largest"),
        ("0 to 1", {"reward": 1.0}, "Give the least and the largest"),
        ([-1, 5], {"reward": -1, "bytes": 5e6}, None),
    ],
)
async def test_a_reward_outside_of_the_range_of_its_task_is_no_verdict(
    bubblewrap, grade, declared, rewards, named
):
    """Whoever gives it: here a grader of a user's own."""
    metadata = {"grade": Grade(rewards), **({} if declared is None else {"reward_range": declared})}
    task = Task("t", "", grader=f"{GRADERS}:giving", metadata=metadata)
    if named is None:
        assert (await grade(bubblewrap, task)).rewards == rewards
        return
    with pytest.raises(TaskError, match=named) as error:
        await grade(bubblewrap, task)
    assert "'t'" in str(error.value)


async def test_nothing_is_left_on_this_machine(bubblewrap, grade, make_task, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    await grade(
        bubblewrap,
        make_task(ANSWER),
        {"answer.txt": "42"},
        run=["mkdir -p closed/in; touch closed/in/x; chmod 0 closed"],
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("harnessgym-graded-")] == []


async def test_a_command_task_that_needs_root_is_refused_where_there_is_none(bubblewrap):
    with pytest.raises(CapabilityError, match="root"):
        require(bubblewrap.capabilities, needs(Task("t", "", needs=frozenset({Capability.ROOT}))))
