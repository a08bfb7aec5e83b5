"""Hostile harnesses against the bubblewrap sandbox, for real and two at once."""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harnessgym.sandbox import Prewarm
from harnessgym.sandboxes.bubblewrap import Interpreter, task_folders, unused_packages
from harnessgym.task import Limits
from tests.harnessgym.sandboxes.ordinary import ORDINARY

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
HOSTILE = str(Path(__file__).with_name("hostile.py"))
ROOT = Path(__file__).parents[3]


async def attack(backend, stub, me, other, prewarm):
    key = f"KEY-{secrets.token_hex(16)}"
    async with backend.open(Limits(wall_s=120)) as sandbox:
        port = stub.url.rsplit(":", 1)[1]
        argv = ["python", HOSTILE, me, other, port, str(backend.root), str(stub.folder / "proxy.sock")]
        env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1"}
        result = await sandbox.exec(argv, env=env, prewarm=prewarm, readable=[HOSTILE])
        assert result.exit_code == 0, result.stderr.decode()
        return json.loads(result.stdout), key


@pytest.mark.parametrize("prewarm", [None, Prewarm("openai")])
async def test_nothing_of_a_sibling_the_server_or_the_node_can_be_reached(bubblewrap, stub, prewarm):
    for _ in range(2):  # the second pair also looks for what the first left in the server
        pair = await asyncio.gather(
            attack(bubblewrap, stub, "a", "b", prewarm), attack(bubblewrap, stub, "b", "a", prewarm)
        )
        for found, _ in pair:
            child = found.pop("child")
            assert found.pop("pids") == [child]
            assert found.pop("killed") == [
                1,
                child,
            ]  # signals to init are dropped: all of this ran after, and init reported it
            network = found.pop("network")
            assert network == {
                "open_ports": [8080],
                "reached": [],
                "families": [1, 2, 10],
                "interfaces": ["lo"],
            }
            assert found.pop("ids")[:2] == [1000, 1000]
            assert not any(found.values()), found


async def test_a_fork_bomb_ends_with_its_rollout(bubblewrap, program):
    bomb = program("""
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        made += 1
except OSError:
    print(made, flush=True)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
""")

    async def explode():
        async with bubblewrap.open(Limits(processes=50)) as sandbox:
            return await sandbox.exec(["python", bomb], timeout_s=3, prewarm=Prewarm(), readable=[bomb])

    async def calm():
        async with bubblewrap.open(Limits(processes=50)) as sandbox:
            await asyncio.sleep(1)
            return await sandbox.exec(
                ["sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1 & done; wait; echo fine"]
            )

    exploded, peaceful = await asyncio.gather(explode(), calm())
    assert exploded.timed_out
    assert exploded.stdout == b"49\n"  # and the harness itself
    assert peaceful.stdout == b"fine\n"


async def test_the_scratch_folders_are_bounded(bubblewrap):
    async with bubblewrap.open(Limits()) as sandbox:
        for folder in ("/tmp", "/home/agent", "/dev/shm"):
            result = await sandbox.exec(
                [
                    "sh",
                    "-c",
                    f"head -c 100000000 /dev/zero > {folder}/big; stat -c %s {folder}/big; rm {folder}/big",
                ]
            )
            assert b"No space left" in result.stderr
            assert int(result.stdout) <= 64 << 20


async def test_ordinary_things_work_inside(bubblewrap):
    import_too = "import openai\n"  # ours has what harnesses need
    async with bubblewrap.open(Limits()) as sandbox:
        await sandbox.write("p.py", (import_too + ORDINARY).encode())
        for prewarm in (None, Prewarm()):
            result = await sandbox.exec(["python", "p.py"], prewarm=prewarm, stdin=b"in")
            assert (result.stdout, result.exit_code) == (b"fine", 0), result.stderr.decode()


async def test_programs_below_a_covered_folder_stay_readable_and_only_they(bubblewrap, program, tmp_path):
    first, second = program("print(open(__file__).read())", "a.py"), program("secret", "b.py")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_text("in a folder")
    async with bubblewrap.open(Limits()) as sandbox:
        readable = [first, str(tmp_path / "folder")]
        assert (await sandbox.exec(["python", first], prewarm=Prewarm(), readable=readable)).ok
        assert (
            await sandbox.exec(["cat", str(tmp_path / "folder" / "f")], readable=readable)
        ).stdout == b"in a folder"
        assert not (await sandbox.exec(["cat", second], readable=readable)).ok
        assert not (await sandbox.exec(["sh", "-c", f"echo x > {first}"], readable=readable)).ok


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else"
)
def test_it_needs_no_privileges():
    """The hostile pair and others again, with the node itself an ordinary user on the system's Python."""
    python = "/usr/bin/python3"
    ask = [python, "-c", "import sys; print(sys.version_info[:2])"]
    if not Path(python).exists() or subprocess.check_output(ask, text=True).strip() != str(
        sys.version_info[:2]
    ):
        pytest.skip("there is no system Python of our version, and ours may lie where others cannot go")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 1234, 1234)
        command = [
            "setpriv",
            "--reuid",
            "1234",
            "--regid",
            "1234",
            "--clear-groups",
            "env",
            f"PYTHONPATH={ROOT}:{packages}",
        ]
        command += [
            f"HOME={folder}",
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}/t",
        ]
        walls = str(Path(__file__).with_name("test_grading_walls.py"))
        command += [__file__, walls, "-k"]
        command += ["(nothing_of and None) or bomb or covered or bounded or (judg and not docker)"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_folders_of_installed_tasks_are_found(tmp_path):
    there = tmp_path / "lib/python3.11/site-packages/environments/shell_tasks/tasks"
    there.mkdir(parents=True)
    (tmp_path / "lib/python3.11/site-packages/environments/lookup").mkdir()
    system = tmp_path / "lib/python3.11/dist-packages/environments/swe/tasks"
    system.mkdir(parents=True)
    assert task_folders((str(tmp_path), "/no/such/prefix")) == (str(system), str(there))


def test_packages_that_a_virtual_environment_does_not_import_from_are_unused(tmp_path):
    base, own = (tmp_path / name / "lib/python3.11/site-packages" for name in ("base", "venv"))
    base.mkdir(parents=True)
    own.mkdir(parents=True)
    prefixes = str(tmp_path / "base"), str(tmp_path / "venv")
    assert unused_packages(Interpreter(prefixes, (str(own),))) == (str(base),)
    assert unused_packages(Interpreter(prefixes, (str(own), str(base)))) == ()
