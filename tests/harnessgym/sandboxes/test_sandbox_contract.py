"""What every sandbox backend must do."""

import asyncio
import json
import os
import signal
import subprocess
import time

import pytest

from harnessgym.errors import CapabilityError, SandboxError
from harnessgym.sandbox import Capability, Equipment, Prewarm
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio
PLAIN = Prewarm()


def running(mark):
    """Command lines on this machine that contain `mark`."""
    lines = subprocess.run(
        ["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if mark in line and "ps ax" not in line]


async def test_a_command_runs_in_its_workspace_with_its_environment(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("deep/er/in.txt", b"hello")
        result = await sandbox.exec(
            ["sh", "-c", 'cat in.txt; echo "$WORD" >&2; cat; exit 3'],
            env={"WORD": "w"},
            cwd="deep/er",
            stdin=b"!",
        )
        assert (result.exit_code, result.signal, result.stdout, result.stderr) == (3, None, b"hello!", b"w\n")
        assert not result.ok
        assert not result.timed_out
        assert not result.stdout_truncated
        assert 0 <= result.cpu_s < 5
        assert 0 < result.wall_s < 30


async def test_without_stdin_reading_it_ends_at_once(backend):
    async with backend.open(Limits()) as sandbox:
        assert (await sandbox.exec(["cat"])).ok


async def test_the_node_s_environment_stays_outside(backend, monkeypatch):
    monkeypatch.setenv("NODE_SECRET", "hunter2")
    async with backend.open(Limits()) as sandbox:
        script = "import os; print(open('/proc/self/environ').read(), os.environ)"
        for prewarm in (None, PLAIN):
            await sandbox.write("p.py", script.encode())
            result = await sandbox.exec(["python", "p.py"], prewarm=prewarm)
            assert result.ok
            assert b"hunter2" not in result.stdout
            assert b"HOME" in result.stdout


async def test_a_missing_program_is_a_result(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["/no/such/program"])
        assert result.exit_code == 127
        assert b"No such file" in result.stderr


@pytest.mark.parametrize("prewarm", [None, PLAIN])
async def test_python_ends_as_an_interpreter_would(backend, prewarm):
    cases = {
        "import sys; sys.exit('bad luck')": (1, b"", b"bad luck\n"),
        "import sys; sys.exit(7)": (7, b"", b""),
        "print('out', end='')": (0, b"out", b""),
        "import atexit, threading, time\natexit.register(print, 'bye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()": (
            0,
            b"thread\nbye\n",
            b"",
        ),
        "import sys; print(__name__, sys.argv, open('x').read())": (
            0,
            b"__main__ ['case.py', '-a', 'b'] here\n",
            b"",
        ),
        "import os; os.write(1, b'raw'); os._exit(4)": (4, b"raw", b""),
    }
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("x", b"here")
        for text, (code, out, err) in cases.items():
            await sandbox.write("case.py", text.encode())
            result = await sandbox.exec(["python", "case.py", "-a", "b"], prewarm=prewarm)
            assert (result.exit_code, result.stdout, result.stderr) == (code, out, err)


async def test_a_crash_shows_its_traceback_or_its_signal(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("raise.py", b"raise ValueError('it broke')")
        await sandbox.write("abort.py", b"import os; os.abort()")
        raised = await sandbox.exec(["python", "raise.py"], prewarm=PLAIN)
        assert raised.exit_code == 1
        assert b"ValueError: it broke" in raised.stderr
        aborted = await sandbox.exec(["python", "abort.py"], prewarm=PLAIN)
        assert (aborted.exit_code, aborted.signal) == (None, signal.SIGABRT)


async def test_a_module_and_a_sibling_module_can_be_run(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("helper.py", b"WORD = 'found'")
        await sandbox.write("agent.py", b"import helper, sys; print(helper.WORD, sys.argv[1:])")
        for command in (["python", "agent.py", "a"], ["python", "-m", "agent", "a"]):
            assert (await sandbox.exec(command, prewarm=PLAIN)).stdout == b"found ['a']\n"


async def test_only_python_can_be_prewarmed(backend):
    async with backend.open(Limits()) as sandbox:
        for command in (["sh", "-c", "true"], ["python"], ["python", "-m"]):
            with pytest.raises(SandboxError, match=r"prewarmed|Python command"):
                await sandbox.exec(command, prewarm=PLAIN)


@pytest.mark.parametrize("prewarm", [None, PLAIN])
async def test_a_timeout_takes_every_child_along(backend, prewarm):
    mark = f"3{os.getpid()}{time.monotonic_ns() % 10**6}"
    script = f"""
import os, subprocess, time
subprocess.Popen(["sleep", "{mark}"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen(["sleep", "{mark}"], start_new_session=True)
    time.sleep(1000)
print("started", flush=True)
time.sleep(1000)
"""
    async with backend.open(Limits(wall_s=60)) as sandbox:
        await sandbox.write("hang.py", script.encode())
        result = await sandbox.exec(["python", "hang.py"], timeout_s=1.0, prewarm=prewarm)
        assert result.timed_out
        assert result.exit_code is None
        assert result.stdout == b"started\n"
        assert result.wall_s < 10
    assert running(mark) == []


async def test_children_left_behind_die_with_the_command(backend):
    mark = f"4{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", f"setsid sleep {mark} & (setsid setsid sleep {mark} &) ; echo done"]
        )
        assert result.stdout == b"done\n"
        assert result.wall_s < 10
        assert running(mark) == []


async def test_cancelling_kills_and_closing_removes(backend):
    mark = f"5{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with backend.open(Limits()) as sandbox:
        folder = sandbox.workspace
        run = asyncio.create_task(sandbox.exec(["sleep", mark]))
        while not running(f"sleep {mark}"):
            await asyncio.sleep(0.02)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert running(f"sleep {mark}") == []
    assert not folder.exists()


async def test_leaving_the_sandbox_ends_what_still_runs(backend):
    mark = f"6{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with backend.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sleep", mark]))
        while not running(f"sleep {mark}"):
            await asyncio.sleep(0.02)
    assert running(f"sleep {mark}") == []
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_flood_of_output_is_bounded_and_marked(backend):
    async with backend.open(Limits(output_bytes=10_000)) as sandbox:
        flood = await sandbox.exec(["sh", "-c", "yes flood & yes >&2"], timeout_s=1.0)
        assert flood.timed_out
        assert (len(flood.stdout), len(flood.stderr)) in {(10_000, 10_000), (0, 10_000)}
        assert flood.stderr_truncated
        large = await sandbox.exec(["head", "-c", "3000000", "/dev/zero"], max_output=2_000_000)
        assert large.ok
        assert len(large.stdout) == 2_000_000
        assert large.stdout_truncated
        exact = await sandbox.exec(["head", "-c", "10000", "/dev/zero"])
        assert len(exact.stdout) == 10_000
        assert not exact.stdout_truncated


async def test_memory_and_file_size_are_limited(make_backend):
    async with make_backend(file_mb=1) as backend, backend.open(Limits(memory_mb=300)) as sandbox:
        eat = "try:\n  eaten = bytes(range(256)) * (600 << 12)\n  print('eaten')\nexcept MemoryError:\n  print('refused')"
        await sandbox.write("eat.py", eat.encode())
        eaten = await sandbox.exec(["python", "eat.py"], prewarm=PLAIN)
        killed = (
            Capability.MEMORY in backend.capabilities
            and eaten.signal == signal.SIGKILL
            and eaten.stdout == b""
        )
        assert killed or eaten.stdout == b"refused\n"
        assert not (await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big"])).ok
        assert len(await sandbox.read("big")) <= 1 << 20


async def test_files_go_in_and_out(backend, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a").write_bytes(b"\0a")
    (tmp_path / "in" / "sub" / "b").write_bytes(b"b")
    async with backend.open(Limits()) as sandbox:
        await sandbox.upload(tmp_path / "in", "got")
        await sandbox.upload(tmp_path / "in" / "a", "single")
        assert await sandbox.read("single") == b"\0a"
        assert (
            await sandbox.exec(
                ["sh", "-c", "cat got/sub/b; mv got moved; rm single; chmod 0 moved/a; chmod 600 moved/a"]
            )
        ).ok
        await sandbox.download(".", tmp_path / "out")
        await sandbox.download("moved/sub", tmp_path / "sub")
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*")) == [
        "moved",
        "moved/a",
        "moved/sub",
        "moved/sub/b",
    ]
    assert (tmp_path / "sub" / "b").read_bytes() == b"b"


async def test_what_is_not_there_is_said_plainly(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        for path in ("no.txt", "no/where.txt"):
            with pytest.raises(FileNotFoundError, match=path):
                await sandbox.read(path)
        with pytest.raises(FileNotFoundError):
            await sandbox.download("no", tmp_path / "no")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", ".", "x\0y"])
async def test_paths_stay_inside(backend, path):
    async with backend.open(Limits()) as sandbox:
        with pytest.raises(SandboxError):
            await sandbox.read(path)
        with pytest.raises(SandboxError):
            await sandbox.write(path, b"")


async def test_traps_left_in_the_workspace_are_not_stepped_into(backend, tmp_path):
    (tmp_path / "secret").write_text("ours")
    traps = f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder; mkfifo fifo; mkdir dir; echo x > file"
    async with backend.open(Limits()) as sandbox:
        assert (await sandbox.exec(["sh", "-c", traps])).ok
        for path in ("link", "folder/secret", "fifo", "dir", "file/x"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        with pytest.raises(SandboxError):
            await sandbox.write("folder/new", b"")
        with pytest.raises(SandboxError):
            await sandbox.write("dir", b"")
        with pytest.raises(SandboxError):
            await sandbox.download(".", tmp_path / "out")
        await sandbox.write("link", b"replaced")
        assert await sandbox.read("link") == b"replaced"
    assert (tmp_path / "secret").read_text() == "ours"
    assert not (tmp_path / "new").exists()


async def test_large_files_are_refused(make_backend, tmp_path):
    async with make_backend(read_mb=1) as backend, backend.open(Limits()) as sandbox:
        await sandbox.exec(
            ["sh", "-c", "mkdir d; head -c 700000 /dev/zero > d/a; cp d/a d/b; cat d/a d/b > c"]
        )
        with pytest.raises(SandboxError, match="limit"):
            await sandbox.read("c")
        with pytest.raises(SandboxError, match="limit"):
            await sandbox.download("d", tmp_path / "d")


async def test_what_is_made_unreadable_is_still_removed(backend):
    async with backend.open(Limits()) as sandbox:
        folder = sandbox.workspace
        await sandbox.exec(["sh", "-c", "mkdir -p a/b; touch a/b/c; chmod 0 a/b a ."])
    assert not folder.exists()


async def test_sandboxes_do_not_share_workspaces(backend):
    async with backend.open(Limits()) as one, backend.open(Limits()) as other:
        await one.write("x", b"")
        assert (await other.exec(["ls"])).stdout == b""


async def test_many_at_a_time(backend):
    async def one(number):
        async with backend.open(Limits()) as sandbox:
            await sandbox.write("p.py", f"import time; time.sleep(0.5); print({number})".encode())
            return (await sandbox.exec(["python", "p.py"], prewarm=PLAIN)).stdout

    began = time.monotonic()
    assert await asyncio.gather(*map(one, range(24))) == [f"{n}\n".encode() for n in range(24)]
    assert time.monotonic() - began < (
        8 if Capability.PREWARM in backend.capabilities else 60
    )  # a container for each


async def test_forks_do_not_share_randomness(backend):
    async def one():
        async with backend.open(Limits()) as sandbox:
            await sandbox.write(
                "p.py", b"import random, uuid, ssl; print(random.random(), uuid.uuid4(), ssl.RAND_bytes(8))"
            )
            return (await sandbox.exec(["python", "p.py"], prewarm=PLAIN)).stdout

    assert len(set(await asyncio.gather(*(one() for _ in range(8))))) == 8


async def test_the_proxy_is_reached_with_the_harness_s_own_key(backend, stub, program):
    path = program("""
import json, os, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b"{}")
request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
""")
    async with backend.open(Limits(), Equipment(readable=(path,))) as sandbox:
        for key in ("one", "two"):
            env = {"OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1", "OPENAI_API_KEY": key}
            result = await sandbox.exec(["python", path], env=env, prewarm=PLAIN, readable=[path])
            assert (result.stdout, result.exit_code) == (b"done\n", 0), result.stderr
    assert [headers["authorization"] for _, headers, _ in stub.requests] == ["Bearer one", "Bearer two"]


async def test_without_a_proxy_there_is_no_address(backend):
    async with backend.open(Limits(), Equipment(proxy=False)) as sandbox:
        assert sandbox.proxy_url == ""


async def test_warmed_sdks_reach_the_proxy_with_their_own_key(backend, stub, program):
    if Capability.PREWARM not in backend.capabilities:
        pytest.skip("nothing is warmed here: an image brings its own packages")
    path = program("""
import sys
if sys.argv[1] == "openai":
    import openai
    print(openai.OpenAI().chat.completions.create(model="m", messages=[]).choices[0].message.content)
else:
    import anthropic
    print(anthropic.Anthropic().messages.create(model="m", max_tokens=1, messages=[]).content[0].text)
""")
    async with backend.open(Limits()) as sandbox:
        env = {
            "OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1",
            "OPENAI_API_KEY": "one",
            "ANTHROPIC_BASE_URL": sandbox.proxy_url,
        }
        env["ANTHROPIC_API_KEY"] = "two"
        for warm in ("openai", "anthropic"):
            words = ["python", path, warm]
            result = await sandbox.exec(words, env=env, prewarm=Prewarm(warm), readable=[path])
            assert (result.stdout, result.exit_code) == (b"done\n", 0), result.stderr
    keys = [
        (path, headers.get("x-api-key") or headers["authorization"].removeprefix("Bearer "))
        for path, headers, _ in stub.requests
    ]
    assert keys == [("/v1/chat/completions", "one"), ("/v1/messages", "two")]


async def test_a_warm_up_that_fails_says_why(backend):
    if Capability.PREWARM not in backend.capabilities:
        pytest.skip("nothing is warmed here")
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("p.py", b"")
        with pytest.raises(SandboxError, match="no_such_module_anywhere"):
            await sandbox.exec(["python", "p.py"], prewarm=Prewarm("no_such_module_anywhere"))


async def test_a_warm_up_that_leaves_a_socket_for_all_to_share_is_refused(backend):
    if Capability.PREWARM not in backend.capabilities:
        pytest.skip("nothing is warmed here")
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("p.py", b"")
        with pytest.raises(SandboxError, match="2 sockets open"):
            await sandbox.exec(["python", "p.py"], prewarm=Prewarm("asyncio:get_event_loop"))


async def test_root_is_refused_where_there_is_none(backend):
    async with backend.open(Limits()) as sandbox:
        if Capability.ROOT not in sandbox.capabilities:
            with pytest.raises(CapabilityError, match="root"):
                await sandbox.exec(["id"], user="root")


async def test_snapshots_are_refused_where_there_are_none(backend):
    async with backend.open(Limits()) as sandbox:
        if Capability.SNAPSHOT not in sandbox.capabilities:
            with pytest.raises(CapabilityError):
                await sandbox.snapshot()


async def test_a_snapshot_outlives_the_sandbox_it_was_made_in(backend):
    async with backend.open(Limits()) as sandbox:
        if Capability.SNAPSHOT not in sandbox.capabilities:
            return
        await sandbox.write("a/b.txt", b"kept")
        snapshot = await sandbox.snapshot()
    forked = await sandbox.fork(snapshot)
    assert await forked.read("a/b.txt") == b"kept"
    await forked.aclose()


async def test_a_closed_backend_refuses(make_backend):
    backend = make_backend()
    with pytest.raises(SandboxError, match="not open"):
        async with backend.open(Limits()):
            pass


async def test_the_folder_of_a_dead_node_is_removed_and_a_living_one_s_is_not(make_backend, tmp_path):
    (tmp_path / "w" / "harnessgym-node-1-dead" / "x").mkdir(parents=True)
    (tmp_path / "w" / "somebody-else").mkdir()
    async with make_backend() as first:
        assert not (tmp_path / "w" / "harnessgym-node-1-dead").exists()
        async with make_backend() as second:
            assert first.root.exists()
            assert second.root.exists()
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["somebody-else"]


async def test_arguments_hold_no_secret_and_results_no_path_of_ours(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write(
            "p.py", b"import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), sys.path[0]]))"
        )
        result = await sandbox.exec(["python", "p.py"], prewarm=PLAIN)
        argv, cwd, first = json.loads(result.stdout)
        assert argv == ["p.py"]
        assert cwd == first
