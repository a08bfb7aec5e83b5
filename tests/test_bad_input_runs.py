"""What a user gets when something goes wrong in the middle of a run: it goes on, or says in one message
why it cannot.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from harnessgym.process import ProcessId, identify
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, rollouts, runs, tables
from harnessgym.store.tables import rewards
from harnessgym.supervisor.progress import read_metrics
from tests.harnessgym.rollout.tiny import HERE, write_harnesses
from tests.support.command import run_here

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "environments/lookup/policy"


class Run:
    """A run of tiny tasks, started by its command line and looked at from outside."""

    def __init__(self, tmp_path, *harnesses, folder=None, **sections):
        self.folder = folder or tmp_path / "run"
        config = {
            "name": "bad",
            "policy": {"path": str(POLICY)},
            "tasks": {"set": f"{HERE}:Tiny"},
            "harnesses": write_harnesses(tmp_path, harnesses),
            "sandbox": {"backend": "process"},
            "sampling": {"max_tokens": 8},
            "node": {"max_running": 4},
            "engine": {"workers": 1, "max_length": 256},
            "trainer": {"steps": 2, "groups_per_step": 2, "group_size": 4},
            "evaluation": {"tasks": 0},
        }
        for name, values in sections.items():
            config[name] = config.get(name, {}) | values if isinstance(values, dict) else values
        self.config = tmp_path / "run.json"
        self.config.write_text(json.dumps(config))
        self.output = tmp_path / "output.txt"
        self.process = None
        self._store = None
        self._waits = False

    def command(self, *arguments):
        folder = ["--folder", str(self.folder)]
        return [sys.executable, "-m", "harnessgym", "train", str(self.config), *folder, *map(str, arguments)]

    def start(self, *arguments):
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                self.command(*arguments),
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=os.environ | {"COLUMNS": "200"},
            )
        return self

    def end(self, *arguments, code=0, timeout_s=200):
        """Run to the end (starting it if need be); returns what it said."""
        if self.process is None or self.process.poll() is not None:
            self.start(*arguments)
        try:
            assert self.process.wait(timeout=timeout_s) == code, self.said()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        said = self.said()
        assert "Traceback" not in said
        assert said.count("harnessgym: ") == (code == 2)
        return said

    def end_here(self, *arguments, code):
        """What a start says that starts no process, made in this one."""
        with contextlib.chdir(ROOT):
            ended = run_here(self.command(*arguments)[3:], COLUMNS="200")
        for descriptor in Path("/proc/self/fd").iterdir():  # a supervisor claims its folder until it ends
            with contextlib.suppress(OSError):
                if Path(os.readlink(descriptor)) == self.folder / "supervisor.pid":
                    os.close(int(descriptor.name))
        said = ended.stdout + ended.stderr
        assert ended.returncode == code, said
        assert said.count("harnessgym: ") == (code == 2)
        return said

    def said(self):
        return self.output.read_text()

    def wait(self, condition, timeout_s=120, every_s=0.02):
        deadline = time.monotonic() + timeout_s
        self._waits = True
        try:
            while not condition():
                assert time.monotonic() < deadline, self.said()
                assert self.process.poll() is None, self.said()
                time.sleep(every_s)
        finally:
            self._waits = False
            self._close_store()

    def pids(self):
        try:
            return {
                name: ProcessId(*entry)
                for name, entry in json.loads(self.paths().processes_path.read_text()).items()
            }
        except (FileNotFoundError, ValueError):
            return {}

    def running(self):
        """Rollouts that are running now."""
        if not self.pids().get("node"):
            return 0
        states = self.read(lambda conn: rollouts.rollout_states(conn, runs.only(conn).id))
        return states.get("running", 0)

    def tokens(self):
        """Tokens sampled so far."""
        if not self.pids().get("node"):
            return 0
        return self.read(lambda conn: runs.tokens_sampled(conn, runs.only(conn).id))

    def read(self, work):
        """Look into the store. It stays open while `wait` looks again and again: opening it is what costs."""
        self._store = self._store or TraceStore.open(self.paths().store_url())
        try:
            return self._store.read(work)
        finally:
            if not self._waits:
                self._close_store()

    def _close_store(self):
        if self._store is not None:
            self._store.close()
            self._store = None

    def attempts(self):
        """Stop reason, verdict and reward of every attempt at a rollout."""
        reward = (rewards.c.rollout_id == tables.rollouts.c.id) & (rewards.c.channel == "reward")
        columns = tables.rollouts.c.stop_reason, tables.rollouts.c.verdict, rewards.c.value
        query = select(*columns).select_from(tables.rollouts.outerjoin(rewards, reward))
        return [tuple(row) for row in self.read(lambda conn: conn.execute(query).all())]

    def steps(self):
        return len(read_metrics(self.paths()))

    def paths(self):
        return RunFolder(self.folder)

    def sockets(self):
        return Path(json.loads((self.folder / "sockets.json").read_text()))

    def assert_nothing_is_left(self):
        assert not none_left(self.folder)
        assert not self.paths().workspaces.exists()
        assert not (self.folder / "sockets.json").exists()

    def assert_verified(self):
        result = run_here(["traces", "verify", self.folder])
        assert result.returncode == 0, result.stdout


def processes_of(folder):
    """Living processes that were started with this folder in their arguments, or in a workspace of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words, place = (
                    (entry / "cmdline").read_bytes().decode(errors="replace"),
                    os.readlink(entry / "cwd"),
                )
            except OSError:
                continue
            known = identify(int(entry.name))
            if (
                (str(folder) in words or place.startswith(str(folder)))
                and known is not None
                and known.alive()
            ):
                found.append((entry.name, words))
    return found


def descendants(pid):
    """Identities of all processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, below = [], [pid]
    while below:
        below = [child for child, parent in parents.items() if parent in below]
        found += [known for child in below if (known := identify(child)) is not None]
    return found


def none_left(folder, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.fixture
def make_run(tmp_path):
    made = []

    def make(*harnesses, **options):
        made.append(Run(tmp_path, *harnesses, **options))
        return made[-1]

    yield make
    for run in made:
        if run.process is not None and run.process.poll() is None:
            run.process.terminate()
            run.process.wait(timeout=60)


def test_beside_a_broken_harness_a_run_finishes_with_reduced_groups_and_evaluations(make_run):
    run = make_run("good", "never_calls", evaluation={"tasks": 2}, trainer={"steps": 1, "groups_per_step": 1})
    run.end()
    summary = json.loads(run.paths().summary_path.read_text())
    assert summary["rollouts"] >= 2
    assert summary["stop_reasons"]["no_calls"] >= 3 * 2
    assert run.steps() == 1
    assert summary["evaluation"]["rollouts"] == dict.fromkeys(summary["evaluation"]["rollouts"], 1)
    assert summary["gain"] == 0.0
    run.assert_verified()
    run.assert_nothing_is_left()


def test_a_run_whose_only_harness_never_calls_ends_with_one_error(make_run):
    run = make_run("never_calls", node={"max_running": 4, "abort_after_failures": 6})
    said = run.end(code=2)
    for part in ("node process gave up", "node.log", "in a row", "never called the proxy", "nothing to do"):
        assert part in said
    run.assert_nothing_is_left()


@pytest.mark.parametrize("backend", ["process", pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)])
def test_a_killed_supervisor_takes_everything_along_and_the_next_start_cleans_up(make_run, backend):
    run = make_run("sleeps", sandbox={"backend": backend, "fallback": None}).start()
    run.wait(lambda: run.tokens() > 0)
    everything, sockets = descendants(run.process.pid), run.sockets()
    assert len(everything) > 5
    assert re.search(rf"Process {run.process.pid} is running .* already", run.end_here(code=2))
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 60
    while any(each.alive() for each in everything) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [each for each in everything if each.alive()] == []
    assert none_left(run.folder) == []
    assert sockets.is_dir()
    run.start()
    run.wait(
        lambda: not sockets.exists(), every_s=0.0005
    )  # interrupted while it takes over: what was left still goes
    run.process.send_signal(signal.SIGINT)
    run.end(code=130, timeout_s=60)
    run.assert_nothing_is_left()


def test_an_engine_whose_model_is_gone_ends_the_run_with_one_error(make_run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(POLICY, model)
    run = make_run("good", policy={"path": str(model)}, trainer={"steps": 50}).start()
    run.wait(lambda: run.steps() >= 1)
    shutil.rmtree(model)
    run.pids()["engine-0"].signal(signal.SIGKILL)
    said = run.end(code=2)
    for part in ("engine-0 process gave up", "engine-0.log", str(model)):
        assert part in said
    run.assert_nothing_is_left()


def test_an_engine_that_keeps_dying_is_restarted_so_often_and_no_more(make_run):
    run = make_run("good", trainer={"steps": 500}, supervisor={"max_restarts": 2}).start()
    for _ in range(3):
        run.wait(lambda: (found := run.pids().get("engine-0")) is not None and found.alive())
        engine = run.pids()["engine-0"]
        engine.signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while (
            run.pids().get("engine-0") == engine
            and time.monotonic() < deadline
            and run.process.poll() is None
        ):
            time.sleep(0.02)
    said = run.end(code=2)
    assert "engine-0 process ended 3 times within a minute" in said
    assert "engine-0.log" in said
    assert said.count("starting it again") == 3
    run.assert_nothing_is_left()


def test_a_terminated_run_goes_on_and_when_it_stands_still_says_who_waits_for_whom(make_run):
    changes = {"trainer": {"steps": 3, "groups_per_step": 1}, "supervisor": {"stall_s": 2.0}}
    run = make_run("good", **changes).start()
    run.wait(lambda: run.running() > 0)
    sockets = run.sockets()
    run.process.send_signal(signal.SIGTERM)
    assert "The same command goes on from here" in run.end(code=130, timeout_s=60)
    run.assert_nothing_is_left()
    assert not sockets.exists()
    run.start()
    run.wait(lambda: run.steps() >= 1)
    engine = run.pids()["engine-0"]
    engine.signal(signal.SIGSTOP)
    try:
        before = len(run.said())
        run.wait(lambda: run.said()[before:].count("No rollout has finished") == 2)
    finally:
        engine.signal(signal.SIGCONT)
    said = run.said()[before:]
    assert re.search("trainer waits for rollouts|engine to serve the newest version|wait for an engine", said)
    for part in (
        "no step was taken for 2 s",
        "no step was taken for 4 s",
        "rollouts: ",
        "engine-0 v",
        "node (pid",
        "Logs:",
    ):
        assert part in said
    run.end()
    assert run.steps() == 3
    assert run.attempts().count(("finished", "valid", 1.0)) >= 3 * 4
    assert {row[1:] for row in run.attempts()} <= {("valid", 1.0), ("infrastructure_error", None)}
    run.assert_verified()
    began = time.monotonic()
    said = run.end_here("--require-gain", code=1)
    assert time.monotonic() - began < 10
    assert "training rollouts" in said
    assert "does not lie above 0" in said


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a few megabytes, how to fill it, and how to make it larger."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a tmpfs needs root")

    def fill():
        with contextlib.suppress(OSError), (disk / "other").open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))

    yield disk, fill, lambda: subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_named_and_with_more_space_the_run_finishes(make_run, small_disk):
    disk, fill, enlarge = small_disk
    run = make_run("good", folder=disk / "run", trainer={"steps": 4, "groups_per_step": 1}).start()
    run.wait(lambda: run.steps() >= 1)
    fill()
    said = run.end(code=2)
    assert re.search(rf"disk that holds {disk}\S* is full", said)
    assert "Free space there and run the same command again" in said
    assert none_left(run.folder) == []
    enlarge()
    run.end()
    assert run.steps() >= 3
    run.assert_verified()
