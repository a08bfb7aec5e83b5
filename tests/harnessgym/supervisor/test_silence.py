"""Who is taken for silent, shown, and killed; with real processes that beat as those of a run do."""

import json
import signal
import subprocess
import sys
import time

import pytest

from harnessgym.heartbeat import VARIABLE, HeartbeatListener
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, runs, workers
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.children import Child, Children
from harnessgym.supervisor.processes import Restarts
from harnessgym.supervisor.silence import SilenceWatch

LIMIT_S = 4.0
BEATS = "import time\nfrom harnessgym import heartbeat\nheartbeat.begin()\nwhile True: time.sleep(1)\n"


class Beating(Children):
    """Children that do nothing but beat."""

    def start(self, name):
        self.by_name[name] = Child(None, *self._spawn(None), Restarts(5))

    def _spawn(self, spec):
        heartbeat = HeartbeatListener()
        far = heartbeat.far.fileno()
        process = subprocess.Popen([sys.executable, "-c", BEATS], pass_fds=[far], env={VARIABLE: str(far)})
        heartbeat.started()
        return process, heartbeat


@pytest.fixture
def site(tmp_path):
    """A store with a run, and its processes."""
    children = Beating(RunFolder(tmp_path), threads=1, max_restarts=5)
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "run", {}, "0", "training"))
        yield (
            store,
            run_id,
            children,
            SilenceWatch(store, run_id, children, LIMIT_S, children.folder.silent_path),
        )
        children.end_all()


def look_until(children, watch, condition, timeout_s=40):
    """Look as a supervisor does; everything that was to be told."""
    told, deadline = [], time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, told
        children.reconcile()
        told += watch.look()
        time.sleep(0.05)
    return told


def test_a_silent_process_is_shown_killed_once_and_forgotten_when_it_is_started_again(site):
    _, _, children, watch = site
    for name in ("engine-0", "engine-1"):
        children.start(name)
    look_until(
        children, watch, lambda: all(each.silence.phase == "running" for each in children.by_name.values())
    )
    victim = children.by_name["engine-0"].process
    victim.send_signal(signal.SIGSTOP)
    path = children.folder.silent_path
    assert look_until(children, watch, path.exists) == []
    assert set(json.loads(path.read_text())) == {"engine-0"}
    told = look_until(children, watch, children.exited)
    told += look_until(children, watch, lambda: victim.poll() is not None)
    assert children.exited() == [("engine-0", -signal.SIGKILL)]
    assert len(told) == 1
    assert f"The engine-0 process (pid {victim.pid}) has been silent for " in told[0]
    children.restart("engine-0")
    assert look_until(children, watch, lambda: not json.loads(path.read_text())) == []
    assert children.by_name["engine-0"].restarts == 1
    watch.clear()
    assert not path.exists()


def test_a_process_that_goes_on_in_time_is_not_killed(site):
    _, _, children, watch = site
    children.start("trainer")
    look_until(children, watch, lambda: children.by_name["trainer"].silence.phase == "running")
    process = children.by_name["trainer"].process
    process.send_signal(signal.SIGSTOP)
    look_until(children, watch, children.folder.silent_path.exists)
    process.send_signal(signal.SIGCONT)
    told = look_until(children, watch, lambda: not json.loads(children.folder.silent_path.read_text()))
    assert (told, process.poll()) == ([], None)


def test_an_engine_that_the_run_did_not_start_is_only_named(site):
    store, run_id, children, watch = site

    def is_now(state):
        row = WorkerRow("v0", run_id, "vllm", "http://elsewhere:8000", 3, state)
        store.write(lambda conn: workers.upsert(conn, row))
        watch._looked = 0.0
        return watch.look()

    assert is_now("ready") == []
    (told,) = is_now("silent")
    assert "v0 (vllm at http://elsewhere:8000) is silent" in told
    assert "Calls go to other engines" in told
    assert is_now("silent") == []
    assert is_now("ready") == ["v0 (vllm at http://elsewhere:8000) answers again."]
    assert children.by_name == {}


def test_a_child_without_a_supervisor_is_started_again_when_it_hangs(site):
    _, _, children, _ = site
    children.start("engine")
    victim = children.by_name["engine"].process
    deadline = time.monotonic() + 40

    def revived_until(condition):
        while not condition():
            assert time.monotonic() < deadline
            children.revive(LIMIT_S)
            time.sleep(0.05)

    revived_until(lambda: children.by_name["engine"].silence.phase == "running")
    victim.send_signal(signal.SIGSTOP)
    revived_until(lambda: children.by_name["engine"].process is not victim)
    assert victim.poll() == -signal.SIGKILL
    assert children.by_name["engine"].restarts == 1
