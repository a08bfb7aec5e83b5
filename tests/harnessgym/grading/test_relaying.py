"""The process that signs what pytest's runner reports: code under test reaches neither it nor the nonce."""

import json

import pytest

from harnessgym.grading.bytecode import runner
from harnessgym.grading.pytest_report import PytestReport
from harnessgym.sandbox import Equipment
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio

NONCE = "6e6f6e6365" * 4
TEST = "import work\n\n\ndef test_it():\n    assert work.right\n"
HONEST = "right = True\n"
SEARCH = """
import ctypes, errno, os, re, sys
right = True
parent = os.getppid()
loot = []
for pid in (parent, 1):
    for name in ("mem", "environ", "cmdline", "maps", "stack"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                data = file.read(1 << 20)
                if name != "cmdline":
                    loot.append((pid, name, len(data)))
                if b"6e6f6e6365" in data:
                    loot.append((pid, name, "nonce"))
        except (OSError, ValueError):
            pass
    for number in range(12):
        try:
            os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY))
            loot.append((pid, "fd", number))
        except OSError:
            pass
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
if libc.ptrace(16, parent, 0, 0) == 0 or ctypes.get_errno() != errno.EPERM:
    loot.append((parent, "ptrace"))
here = ctypes.create_string_buffer(8)
class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
mine, theirs = Piece(ctypes.addressof(here), 8), Piece(id(None), 8)
libc.process_vm_readv(parent, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
if ctypes.get_errno() != errno.EPERM:
    loot.append((parent, "vm"))
with open("/proc/self/maps") as maps:
    for line in maps:
        spans = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
        if spans and int(spans[2], 16) - int(spans[1], 16) < 64 << 20:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(int(spans[1], 16))
                try:
                    if re.search(rb"(6e6f6e6365){4}", memory.read(int(spans[2], 16) - int(spans[1], 16))):
                        loot.append(("self", "nonce"))
                except (OSError, OverflowError):
                    pass
right = str([each for each in loot if each[0] != 1])
raise ImportError("loot: " + right)
"""


@pytest.fixture
def run(backend):
    """Runs pytest over a file whose code under test is given."""

    async def go(work, timeout_s=30.0):
        tests = {"files": {"test_a.py": TEST}, "order": ["test_a.py"]}
        programs = [runner("starting"), runner("testing")]
        job = json.dumps({"nonce": NONCE, "programs": programs, "tests": tests}).encode()
        limits = Limits(wall_s=60, memory_mb=512, processes=64, disk_mb=64)
        async with backend.open(limits, Equipment(proxy=False)) as sandbox:
            await sandbox.write("work.py", work.encode())
            command = ["python3", "-I", "-B", "-c", runner("relaying")]
            result = await sandbox.exec(command, stdin=job, timeout_s=timeout_s)
        return PytestReport.parse(result.stdout, NONCE), result

    return go


async def test_an_honest_report_arrives_whole(run):
    report, result = await run(HONEST)
    assert (report.relayed, report.began, report.ended, report.foreign) == ("hidden", True, "0", 0)
    assert report.passed == {"test_a.py::test_it"}
    assert result.exit_code == 0


async def test_code_under_test_finds_neither_the_nonce_nor_a_way_to_the_result(run):
    report, _ = await run(SEARCH)
    assert "loot: []" in report.uncollected[0], report.uncollected


async def test_what_other_code_writes_to_the_pipe_is_named(run):
    """Descriptors of the runner's process lead to the relay alone."""
    work = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 70_000 + b'\\n')\n    except OSError: pass\n"
    report, result = await run(work + HONEST)
    assert report.foreign == 1
    assert b"xxx" not in result.stdout


async def test_a_flood_ends_the_run(run):
    work = "import os, itertools\nfor fd in itertools.cycle(range(3, 64)):\n    try: os.write(fd, b'x' * 65536)\n    except OSError: pass\n"
    report, result = await run(work)
    assert (report.foreign, report.ended) == (1, None)
    assert result.exit_code == 128 + 9


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os._exit(0)", 0),
    ],
)
async def test_it_exits_as_the_runner_does(run, work, code):
    report, result = await run(work)
    assert (report.began, report.ended, result.exit_code) == (True, None, code)


async def test_a_child_of_the_tests_that_holds_the_pipe_delays_nothing(run):
    work = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n    os._exit(0)\n"
    report, result = await run(work + HONEST)
    assert (report.ended, result.timed_out) == ("0", False)
    assert result.wall_s < 20


async def test_a_run_whose_signing_process_is_killed_has_no_result(run):
    report, result = await run("import os, time; os.kill(os.getppid(), 9); time.sleep(1)")
    assert report.ended is None
    assert result.exit_code != 0
