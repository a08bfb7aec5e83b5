"""What code under test can do to the process that judges it, in one grading sandbox: nothing that counts."""

import json
import platform
from contextlib import asynccontextmanager

import pytest

from harnessgym.grading.check import CheckContext
from harnessgym.grading.checks.command import CommandCheck
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import Capability
from harnessgym.task import Limits, Task

BACKENDS = ("bubblewrap", "docker")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks are written for one machine"),
]
GRADING = equipment_of(Task("t", "do it"), grades=True)

CALLS = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
calls = {"ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0),
         "process_vm_writev": (311, 1, 0, 0, 0, 0, 0), "pidfd_getfd": (438, -1, 0, 0),
         "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 1)}
ends = {}
for name, (number, *words) in calls.items():
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, words))
    ends[name] = errno.errorcode.get(ctypes.get_errno(), "done")
print(json.dumps(ends))
"""


async def test_no_process_of_a_grading_sandbox_can_trace_another(backend):
    async with backend.open(Limits(), GRADING) as sandbox:
        for user in (None, "root") if Capability.ROOT in sandbox.capabilities else (None,):
            result = await sandbox.exec(["python3", "-c", CALLS], user=user)
            assert result.ok, result.stderr.decode()
            ends = json.loads(result.stdout)
            never = {name: ends.pop(name) for name in ("perf_event_open", "userfaultfd")}
            assert set(never.values()) <= {"EPERM", "ENOSYS"}
            assert ends == dict.fromkeys(ends, "EPERM")


async def test_an_agent_may_trace_its_own_programs(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["python3", "-c", CALLS])
        assert json.loads(result.stdout)["ptrace"] == "done"


# Each attack is a program of the agent's that the judge's script starts and that makes the script's shell, its
# parent, end with 0 or print a reward.
BY_PTRACE = """
import ctypes, os
libc, judge = ctypes.CDLL(None, use_errno=True), os.getppid()
class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in
                "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss a b c d e f"
                .split()]
registers = Registers()
if libc.ptrace(16, judge, 0, 0) == 0:
    os.waitpid(judge, 0)
    libc.ptrace(12, judge, 0, ctypes.byref(registers))
    registers.rax, registers.rdi, registers.orig_rax = 231, 0, 2**64 - 1  # exit_group(0)
    registers.rip -= 2
    libc.ptrace(13, judge, 0, ctypes.byref(registers))
    libc.ptrace(17, judge, 0, 0)
"""
BY_MEMORY = """
import os, re
judge = os.getppid()
for line in open(f"/proc/{judge}/maps"):
    place, rights, *_ = line.split()
    if "x" in rights and "[" not in line:
        start, end = (int(word, 16) for word in place.split("-"))
        with open(f"/proc/{judge}/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            code = memory.read(end - start)
            exits = bytes.fromhex("31ff b8e7000000 0f05")  # exit_group(0)
            for found in re.finditer(rb"\\x0f\\x05", code):  # what is run when a system call returns
                memory.seek(start + found.end())
                memory.write(exits)
"""
BY_DESCRIPTOR = """
import os
with open(f"/proc/{os.getppid()}/fd/1", "w") as result:
    result.write("forged")
"""
BY_SCRIPT = """
import os
for word in open(f"/proc/{os.getppid()}/cmdline").read().split("\\0"):
    if word.endswith("/run.sh"):
        size = os.stat(word).st_size
        os.chmod(word, 0o700)
        open(word, "r+").write("exit 0\\n" * (size // 7))
"""


async def verdict(backend, tmp_path, attack, script):
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "solution.py").write_text(attack)

    @asynccontextmanager
    async def fresh():
        async with backend.open(Limits(), GRADING) as sandbox:
            await sandbox.upload(tmp_path / "left" / "solution.py", "solution.py")
            yield sandbox

    check = CommandCheck(kind="command")
    context = CheckContext(tmp_path / "left", fresh, {"run.sh": script}, "the task")
    return await check.run(context)


@pytest.mark.parametrize("attack", [BY_PTRACE, BY_MEMORY], ids=["ptrace", "memory"])
async def test_the_judging_shell_cannot_be_made_to_exit_with_0(backend, tmp_path, attack):
    outcome = await verdict(backend, tmp_path, attack, "python3 solution.py\nexit 7\n")
    assert not outcome.passed
    assert "exit status 7" in outcome.detail


@pytest.mark.bubblewrap
async def test_the_judge_s_script_cannot_be_changed_while_it_runs(bubblewrap, tmp_path):
    script = f"python3 solution.py\n{'# what a shell has not read yet' * 2000}\nexit 7\n"
    outcome = await verdict(bubblewrap, tmp_path, BY_SCRIPT, script)
    assert not outcome.passed
    assert "exit status 7" in outcome.detail


@pytest.mark.bubblewrap
async def test_the_judging_shell_s_output_cannot_be_opened_by_others(bubblewrap):
    async with bubblewrap.open(Limits(), GRADING) as sandbox:
        await sandbox.write("solution.py", BY_DESCRIPTOR.encode())
        result = await sandbox.exec(["sh", "-c", "python3 solution.py >/dev/null 2>&1; echo $?"])
        assert result.stdout == b"1\n"
