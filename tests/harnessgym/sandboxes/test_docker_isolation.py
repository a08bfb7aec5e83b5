"""Hostile harnesses against the docker sandbox: what they see, what they reach, and what they cannot
exceed.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.engine import address
from harnessgym.task import Limits
from tests.harnessgym.sandboxes.ordinary import ORDINARY
from tests.support.cable import Cable

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
ROOT = Path(__file__).parents[3]
HOSTILE = str(Path(__file__).with_name("hostile.py"))


async def attack(docker, stub, me, other):
    key = f"KEY-{secrets.token_hex(16)}"
    async with docker.open(Limits(wall_s=120), Equipment(readable=(HOSTILE,))) as sandbox:
        port = stub.url.rsplit(":", 1)[1]
        argv = ["python", HOSTILE, me, other, port, str(docker.root), str(stub.folder / "proxy.sock")]
        env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1"}
        result = await sandbox.exec(argv, env=env, readable=[HOSTILE])
        assert result.exit_code == 0, result.stderr.decode()
        return json.loads(result.stdout)


async def test_nothing_of_a_sibling_the_agent_or_the_node_can_be_reached(docker, stub):
    for found in await asyncio.gather(attack(docker, stub, "a", "b"), attack(docker, stub, "b", "a")):
        child = found.pop("child")
        pids = found.pop("pids")
        assert child in pids
        assert len(pids) == 2  # the other is the supervisor
        assert found.pop("killed") == [child]
        network = found.pop("network")
        assert network == {"open_ports": [8080], "reached": [], "families": [1, 2, 10], "interfaces": ["lo"]}
        assert found.pop("ids") == [1000, 1000, []]
        assert set(found.pop("calls")) <= {
            "raise nproc"
        }  # processes are counted by the container, not per user
        assert not any(found.values()), found


async def see(sandbox, script, **options):
    result = await sandbox.exec(["python", "-c", f"import json, os, sys\n{script}"], **options)
    assert result.ok, result.stderr.decode()
    return json.loads(result.stdout)


STATUS = """
names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({name: lines[name].split() for name in names}))
"""


async def test_a_command_has_no_privilege_and_can_get_none(docker):
    async with docker.open(Limits()) as sandbox:
        status = await see(sandbox, STATUS)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name][0], 16) == 0
        assert status["NoNewPrivs"] == ["1"]
        assert status["Seccomp"] == ["2"]
        assert status["Uid"] == status["Gid"] == ["1000"] * 4
        assert status["Groups"] == []


async def test_root_may_change_files_and_become_others_and_nothing_else(docker):
    async with docker.open(Limits()) as sandbox:
        status = await see(sandbox, STATUS, user="root")
        assert status["Uid"] == ["0"] * 4
        allowed = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7
        assert int(status["CapEff"][0], 16) == int(status["CapBnd"][0], 16) == allowed
        await sandbox.write("mine", b"x")
        assert (await sandbox.exec(["chown", "0:0", "mine"], user="root")).ok
        assert not (await sandbox.exec(["sh", "-c", "echo y > mine"])).ok
        for command in (
            "mount -t tmpfs x /mnt",
            "echo x > /etc/x",
            "echo 1 > /proc/sys/vm/drop_caches",
            "mknod d b 8 0",
        ):
            assert not (await sandbox.exec(["sh", "-c", command], user="root")).ok, command
        home = await see(
            sandbox,
            "print(json.dumps([os.environ['HOME'], os.access(os.environ['HOME'], os.W_OK)]))",
            user="root",
        )
        assert home[0] == "/root"  # a harness cannot leave a .gitconfig there


async def test_only_loopback_and_no_route(docker):
    async with docker.open(Limits()) as sandbox:
        script = """
import socket
routes6 = {line.split()[-1] for line in open("/proc/net/ipv6_route")} if os.path.exists("/proc/net/ipv6_route") else set()
print(json.dumps([[name for _, name in socket.if_nameindex()], list(open("/proc/net/route"))[1:], sorted(routes6)]))
"""
        interfaces, routes, routes6 = await see(sandbox, script)
        assert interfaces == ["lo"]
        assert routes == []
        assert set(routes6) <= {"lo"}


async def test_pid_1_can_be_neither_signalled_nor_traced_nor_looked_into(docker):
    script = """
import ctypes, signal
libc, done = ctypes.CDLL(None, use_errno=True), []
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
    for pid in (1, -1):
        try:
            os.kill(pid, number if pid == 1 else 0)
        except OSError:
            pass
if libc.ptrace(16, 1, 0, 0) == 0:
    done.append("ptrace")
for name in ("mem", "environ", "maps", "fd/0", "root", "cwd", "exe"):
    try:
        os.readlink(f"/proc/1/{name}") if name in ("fd/0", "root", "cwd") else open(f"/proc/1/{name}", "rb").read(1)
        done.append(name)
    except OSError:
        pass
print(json.dumps(done))
"""
    async with docker.open(Limits()) as sandbox:
        assert await see(sandbox, script) == []
        assert await see(sandbox, script, user="root") == []
        await asyncio.sleep(0.2)
        assert (await sandbox.exec(["true"])).ok


async def test_the_agent_s_door_is_shut_once_it_is_connected(docker):
    script = """
import socket
tried = []
for folder, _, names in os.walk("/run/harnessgym"):
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            try:
                socket.socket(socket.AF_UNIX, kind).connect(f"{folder}/{name}")
                tried.append(name)
            except OSError:
                pass
listening = [line for line in list(open("/proc/net/unix"))[1:] if line.split()[3] == "00010000"]
writable = [path for path in ("/run/harnessgym", "/run/harnessgym/door", "/run/harnessgym/agent") if os.access(path, os.W_OK)]
print(json.dumps([os.listdir("/run/harnessgym/door"), tried, len(listening), writable]))
"""
    async with docker.open(Limits()) as sandbox:
        for user in (None, "root"):
            files, connected, listening, writable = await see(sandbox, script, user=user)
            assert (files, connected, writable) == ([], [], [])
            assert listening == 0  # in this network namespace, with or without a name


async def test_no_secret_is_in_what_others_can_see(docker):
    secret = f"hunter2-{secrets.token_hex(8)}"
    async with docker.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sleep", "30"], env={"API_KEY": secret}))
        while (await sandbox.stats()).processes < 2:  # the supervisor and the command
            await asyncio.sleep(0.01)
        script = """
texts = [open("/proc/self/mountinfo").read()]
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            texts.append(f"{pid} {name}" + open(f"/proc/{pid}/{name}").read())
        except OSError:
            pass
print(json.dumps([text for text in texts if sys.argv[1] in text and sys.argv[1] not in ("",)]))
"""
        result = await sandbox.exec(["python", "-c", f"import json, os, sys\n{script}", secret[8:]])
        seen = json.loads(result.stdout)
        # the same user's own processes may be looked at; the arguments are those of this very program
        assert all("environ" in text or secret not in text for text in seen)
        assert not any(text.startswith("1 ") for text in seen)
        inspected = subprocess.run(
            ["docker", "inspect", sandbox.id], capture_output=True, text=True, check=True
        ).stdout
        assert secret not in inspected
        lines = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert secret not in lines
        await sandbox.kill_all()
        await run


BOMB = """
import os, signal, sys, time
made = 0
try:
    while True:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                try:
                    os.fork()
                    os.kill(-1, signal.SIGCONT)
                except OSError:
                    time.sleep(0.001)
        made += 1
except OSError:
    print(made, flush=True)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""


async def test_a_fork_bomb_is_bounded_and_ends_at_its_timeout(docker):
    async with docker.open(Limits(processes=50)) as bombed, docker.open(Limits(processes=50)) as calm:
        await bombed.write("bomb.py", BOMB.encode())

        async def explode():
            return await bombed.exec(["python", "bomb.py"], timeout_s=3)

        async def carry_on():
            await asyncio.sleep(1)
            most = (await bombed.stats()).processes
            return most, await calm.exec(
                ["sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1 & done; wait; echo fine"]
            )

        exploded, (most, fine) = await asyncio.gather(explode(), carry_on())
        assert exploded.timed_out
        assert exploded.wall_s < 15
        assert 30 <= most <= 51
        assert fine.stdout == b"fine\n"
        assert (await bombed.stats()).processes == 0
        assert (await bombed.exec(["echo", "again"])).stdout == b"again\n"


async def test_kill_all_ends_a_fork_bomb_at_once(docker):
    async with docker.open(Limits(processes=50)) as sandbox:
        await sandbox.write("bomb.py", BOMB.encode())
        run = asyncio.create_task(sandbox.exec(["python", "bomb.py"]))
        while (await sandbox.stats()).processes < 40:
            await asyncio.sleep(0.02)
        crowded = await sandbox.exec(["true"])  # there may be no room for one more
        assert crowded.exit_code == 0 or (
            crowded.exit_code == 126 and b"could not start the command" in crowded.stderr
        )
        began = time.monotonic()
        await sandbox.kill_all()
        assert time.monotonic() - began < 5
        assert (await sandbox.stats()).processes == 0
        result = await run
        assert (result.exit_code, result.signal, result.timed_out) == (None, 9, False)
        assert (await sandbox.exec(["echo", "again"])).stdout == b"again\n"


async def test_memory_holds_for_all_processes_together(docker):
    hog = """
import os, time
for _ in range(6):
    os.fork()
eaten = bytes(range(256)) * (8 << 12)
print(len(eaten), flush=True)
time.sleep(1)
"""
    async with docker.open(Limits(memory_mb=128)) as sandbox:
        await sandbox.write("hog.py", hog.encode())  # 64 processes with 8 MiB each
        run = asyncio.create_task(sandbox.exec(["python", "hog.py"]))
        while not run.done():
            assert (await sandbox.stats()).memory_bytes <= 128 << 20
            await asyncio.sleep(0.01)
        assert (await run).stdout.count(b"\n") < 60
        assert (await sandbox.exec(["echo", "again"])).stdout == b"again\n"


async def test_a_full_disk_is_said_and_holds_for_the_node_too(docker):
    async with docker.open(Limits(disk_mb=8)) as sandbox:
        fill = await sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero > big; stat -c %s big"])
        assert b"No space left" in fill.stderr
        assert 7 << 20 <= int(fill.stdout) <= 8 << 20
        with pytest.raises(Exception, match="No space left"):
            await sandbox.write("more", bytes(1 << 20))
        assert (await sandbox.stats()).disk_bytes >= 7 << 20
        assert (await sandbox.exec(["rm", "big"])).ok
        await sandbox.write("more", bytes(1 << 20))
        for folder in ("/tmp", "/dev/shm", "$HOME"):
            scratch = await sandbox.exec(
                ["sh", "-c", f"head -c 100000000 /dev/zero > {folder}/big; stat -c %s {folder}/big"]
            )
            assert b"No space left" in scratch.stderr
            assert int(scratch.stdout) <= 64 << 20
            await sandbox.exec(["sh", "-c", f"rm {folder}/big"])


async def test_nothing_outside_of_workspace_and_scratch_can_be_written(docker):
    script = """
found = []
for top, folders, _ in os.walk("/"):
    if top.startswith(("/proc", "/sys")):
        folders.clear()
    elif os.access(top, os.W_OK):
        found.append(top)
        folders.clear()
print(json.dumps(sorted(found)))
"""
    async with docker.open(Limits()) as sandbox:
        assert await see(sandbox, script) == ["/dev/mqueue", "/dev/shm", "/home/agent", "/tmp", "/workspace"]
        sockets = "print(json.dumps([p for p in ('/var/run/docker.sock', '/run/docker.sock') if os.path.exists(p)]))"
        assert await see(sandbox, sockets) == []


async def test_processors_are_limited(docker):
    async with docker.open(Limits(cpus=0.2)) as sandbox:
        began = (await sandbox.stats()).cpu_s
        result = await sandbox.exec(["sh", "-c", "while :; do :; done & while :; do :; done"], timeout_s=2)
        assert result.timed_out
        assert (await sandbox.stats()).cpu_s - began < 1.2  # two loops on two processors would use 2 to 4


async def test_the_harness_s_user_has_a_name(docker):
    async with docker.open(Limits()) as sandbox:
        script = "import pwd; print(json.dumps([pwd.getpwuid(1000).pw_dir, pwd.getpwuid(0).pw_name]))"
        assert await see(sandbox, script) == ["/home/agent", "root"]
        assert (await sandbox.exec(["whoami"])).ok


async def test_ordinary_things_work_inside(docker):
    async with docker.open(Limits()) as sandbox:
        await sandbox.write("p.py", ORDINARY.encode())
        result = await sandbox.exec(["python", "p.py"], stdin=b"in")
        assert (result.stdout, result.exit_code) == (b"fine", 0), result.stderr.decode()


async def test_a_command_inherits_nothing_but_its_streams(docker):
    async with docker.open(Limits()) as sandbox:
        script = "print(json.dumps(sorted(map(int, os.listdir('/proc/self/fd')))))"
        assert await see(sandbox, script) == [0, 1, 2, 3]  # 3 is the listing itself


async def test_a_large_environment_goes_through(docker):
    async with docker.open(Limits()) as sandbox:
        env = {f"V{number}": "x" * 100_000 for number in range(10)}
        assert await see(
            sandbox, "print(json.dumps(sum(map(len, os.environ.values())) > 1_000_000))", env=env
        )
        refused = await sandbox.exec(["true"], env={"V": "x" * 200_000})  # the kernel's bound for one string
        assert refused.exit_code == 126
        assert b"too long" in refused.stderr


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else"
)
def test_a_node_needs_no_privileges_but_the_engine_s_socket():
    """Some of the above with the node an ordinary user on the system's Python, who may use this socket of
    the engine alone.
    """
    python, engine = "/usr/bin/python3", Path(address().removeprefix("unix://"))
    ask = [python, "-c", "import sys; print(sys.version_info[:2])"]
    if not Path(python).exists() or subprocess.check_output(ask, text=True).strip() != str(
        sys.version_info[:2]
    ):
        pytest.skip("there is no system Python of our version, and ours may lie where others cannot go")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    with tempfile.TemporaryDirectory() as folder, Cable(Path(folder) / "engine.sock", engine) as cable:
        for path in (folder, cable.path):
            os.chown(path, 1234, 1234)
        command = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"]
        command += [
            "env",
            f"PYTHONPATH={ROOT}:{packages}",
            f"HOME={folder}",
            f"DOCKER_HOST=unix://{cable.path}",
        ]
        command += [python, "-m", "pytest", "-q"]
        command += [
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}/t",
            str(Path(__file__).with_name("test_sandbox_contract.py")),
        ]
        command += ["-k", "docker and (traps or unreadable or in_and_out or environment or proxy_is_reached)"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="mounts something")
async def test_what_is_mounted_below_something_readable_is_not_there(docker, tmp_path):
    shown = tmp_path / "shown"
    (shown / "below").mkdir(parents=True)
    (shown / "file").write_text("seen")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "mode=777", "x", shown / "below"], check=False
    ).returncode:
        pytest.skip("may not mount")
    try:
        (shown / "below" / "ours").write_text("ours")
        async with docker.open(Limits(), Equipment(readable=(str(shown),))) as sandbox:
            script = f"cat {shown}/file; ls {shown}/below; echo x > {shown}/below/theirs"
            result = await sandbox.exec(["sh", "-c", script], user="root")
            assert result.stdout == b"seen"
            assert b"Read-only" in result.stderr
        assert [path.name for path in (shown / "below").iterdir()] == ["ours"]
    finally:
        subprocess.run(["umount", shown / "below"], check=True)
