"""Services as forks of one process: what they inherit, how they end, and what is left if the server fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from harnessgym.process import identify
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, runs
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.fork_server import _move

POLICY = Path(__file__).parents[3] / "environments/lookup/policy"


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def children(tmp_path):
    group = Children(RunFolder(tmp_path), threads=1, max_restarts=2)
    yield group
    group.end_all()


@pytest.fixture
def proxy(tmp_path, listener):
    """A service that loads faster than an engine."""
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "run", {}, "0", "training"))
    names = {"store": f"sqlite:///{tmp_path}/traces.db", "run_id": run_id, "policy": str(POLICY)}
    settings = names | {"fd": listener.fileno(), "control_key": "k", "control_port": 0}
    return ChildSpec("proxy", "proxy", settings, (listener.fileno(),))


def answers(listener):
    """Whether there is an HTTP server. It is waited for: connections queue in the socket."""
    host, port = listener.getsockname()
    return httpx.get(f"http://{host}:{port}/health", timeout=60).status_code < 500


def until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def server_of(children):
    return children._fork_server._process.pid


def words_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")


def test_an_engine_is_a_fork_and_comes_back_as_one(children, listener):
    settings = {"model": str(POLICY), "fd": listener.fileno(), "max_length": 64}
    children.load(["engine"])
    children.start(ChildSpec("engine", "engine", settings, (listener.fileno(),)))
    assert answers(listener)
    engine = children.by_name["engine"]
    first, server = engine.process, server_of(children)
    assert f"PPid:\t{server}\n" in Path(f"/proc/{first.pid}/status").read_text()
    path = children.folder.root / "services" / "engine.json"
    assert words_of(first.pid) == ["harnessgym", "engine", "--config", str(path)]
    assert words_of(server) == ["harnessgym", "fork-server", "engine", str(children.log_path("fork-server"))]
    assert os.getsid(first.pid) == first.pid
    recorded = json.loads(children.folder.processes_path.read_text())
    assert recorded == {"engine": [first.pid, identify(first.pid).started]}
    until(lambda: children.reconcile() or engine.silence.phase == "running")
    first.send_signal(signal.SIGSTOP)
    until(lambda: children.reconcile() or engine.silence.seconds > 1)
    children.kill("engine")
    until(children.exited)
    assert children.exited() == [("engine", -signal.SIGKILL)]
    children.restart("engine")
    assert answers(listener)
    assert (engine.restarts, engine.process.pid != first.pid) == (1, True)
    assert f"PPid:\t{server}\n" in Path(f"/proc/{engine.process.pid}/status").read_text()
    # The second one took a fraction of what an interpreter needs to load torch.
    assert psutil.Process(engine.process.pid).cpu_times().user < psutil.Process(server).cpu_times().user / 2
    assert children.log_path("fork-server").read_text() == ""
    assert children.log_path("engine").read_text().count("serves policy at") == 2


def test_a_service_ends_when_it_is_asked_to_and_says_how(children, listener, proxy):
    children.load(["proxy"])
    children.start(proxy)
    assert answers(listener)
    process = children.by_name["proxy"].process
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)
    assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert process.poll() == 0
    process.kill()  # of a process that has ended: nothing


def test_of_a_stopped_server_a_service_that_ends_is_noticed_and_replaced(
    children, listener, proxy, monkeypatch
):
    monkeypatch.setattr("harnessgym.supervisor.fork_server._STATUS_S", 0.3)
    monkeypatch.setattr("harnessgym.supervisor.fork_server._ANSWER_S", 1.0)
    children.load(["proxy"])
    children.start(proxy)
    assert answers(listener)
    server = server_of(children)
    os.kill(server, signal.SIGSTOP)
    victim = children.by_name["proxy"].process
    children.kill("proxy")
    until(children.exited)
    assert children.exited() == [("proxy", -signal.SIGKILL)]
    children.restart("proxy")
    assert answers(listener)
    assert children.by_name["proxy"].process.pid != victim.pid
    assert identify(server) is None
    (told,) = children.reconcile()
    assert "The fork server was lost (no answer in 1 s" in told
    assert children.reconcile() == []


def test_with_the_server_its_services_end_and_start_again_without_it(children, listener, proxy):
    children.load(["proxy"])
    children.start(proxy)
    assert answers(listener)
    os.kill(server_of(children), signal.SIGKILL)
    until(children.exited)
    assert children.exited() == [("proxy", -signal.SIGKILL)]
    children.restart("proxy")
    assert answers(listener)
    (told,) = children.reconcile()
    assert "Processes are started as new interpreters from now on" in told


def test_a_server_that_cannot_start_costs_nothing_but_time(children, tmp_path, monkeypatch):
    monkeypatch.setattr("harnessgym.supervisor.fork_server._BOOT", "raise SystemExit(3)")
    children.load(["proxy"])
    children.start(ChildSpec("list", "list", {}))
    assert children._fork_server is None
    until(children.exited)
    assert children.exited() == [("list", 2)]


def test_nothing_outlives_a_killed_supervisor(tmp_path, listener, proxy):
    descriptor = listener.fileno()
    words = [sys.executable, "-c", SUPERVISOR, str(tmp_path), str(descriptor), json.dumps(proxy.settings)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=[descriptor]) as supervisor:
        server = identify(int(supervisor.stdout.readline()))
        service = identify(json.loads(RunFolder(tmp_path).processes_path.read_text())["proxy"][0])
        assert answers(listener)
        assert server.alive()
        assert service.alive()
        supervisor.kill()
    until(lambda: not server.alive() and not service.alive())


SUPERVISOR = """
import json, sys, time
from pathlib import Path
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.children import Children, ChildSpec
children = Children(RunFolder(Path(sys.argv[1])), 1, 1)
children.load(["proxy"])
children.start(ChildSpec("proxy", "proxy", json.loads(sys.argv[3]), (int(sys.argv[2]),)))
print(children._fork_server._process.pid, flush=True)
time.sleep(600)
"""


def test_descriptors_get_their_numbers_whatever_is_open_there():
    read = [os.memfd_create(name) for name in "abc"]
    for name, descriptor in zip("abc", read, strict=True):
        os.write(descriptor, name.encode())
    numbers = [read[1], read[2], read[0]]
    before = len(os.listdir("/proc/self/fd"))
    _move(read, numbers)
    assert [os.pread(number, 9, 0) for number in numbers] == [b"a", b"b", b"c"]
    assert len(os.listdir("/proc/self/fd")) == before
    for number in numbers:
        os.close(number)
