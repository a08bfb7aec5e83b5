"""Whole runs over two machines, which are two raylets here: nodes join and leave, a machine dies."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from harnessgym.process import ProcessId, identify
from harnessgym.store import TraceStore, leases, runs
from tests.harnessgym.rollout.tiny import HERE, write_harnesses
from tests.support.postgres import PostgresServer
from tests.support.raylets import Raylets
from tests.test_bad_input_runs import ROOT, Run, processes_of

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.timeout(600)]
NEEDS = {
    "proxy": {"resources": {"first": 1}},
    "trainer": {"resources": {"first": 1}},
    "engine": {"resources": {"engine": 1}},
    "node": {"resources": {"node": 1}},
}


@pytest.fixture(scope="module")
def database():
    with PostgresServer() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def raylets():
    machines = Raylets()
    try:
        machines.add("first", first=3, node=1)
        machines.add("second", engine=2, node=1)
        yield machines
    finally:
        machines.close()


class ClusterRun(Run):
    """Rollouts of a harness that ends when it is let: eight of them, two at a time on a node."""

    def __init__(self, tmp_path, url, address, nodes):
        super().__init__(
            tmp_path,
            "gated",
            tasks={"set": f"{HERE}:Patient"},
            node={"max_running": 2, "prepared_ahead": 0, "lease_s": 6.0},
            trainer={"steps": 1},
            store={"url": url},
            cluster={"address": address, "nodes": nodes, "silent_s": 10.0, **NEEDS},
        )
        self.mark = tmp_path / "mark"
        self.store = TraceStore.create(url)

    def command(self, *arguments):
        folder = ["--folder", str(self.folder)]
        return [
            sys.executable,
            "-m",
            "harnessgym",
            "cluster",
            str(self.config),
            *folder,
            *map(str, arguments),
        ]

    def nodes(self, *arguments):
        command = [sys.executable, "-m", "harnessgym", "cluster", "nodes", str(self.folder), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=120
        ).stdout

    def holders(self, status="running"):
        """How many rollouts each node has."""
        rows = self.rows("SELECT holder FROM rollouts WHERE status = :status", {"status": status})
        return Counter(holder.partition("@")[0] for (holder,) in rows)

    def rows(self, sql, values=None):
        return self.store.read(lambda conn: [tuple(row) for row in conn.execute(text(sql), values or {})])

    def present(self):
        return self.store.read(lambda conn: leases.nodes(conn, found.id) if (found := runs.only(conn)) else 0)

    def places(self):
        return json.loads((self.folder / "places.json").read_text())

    def pid(self, name):
        return int(re.match(r"pid (\d+) ", self.places()[name]["where"]).group(1))

    def let(self):
        self.mark.touch()

    def finish(self, policies=1):
        """To the end, with nothing lost, nothing trained twice, and nothing left."""
        said = self.end()
        assert self.rows("SELECT count(*), count(DISTINCT rollout_id) FROM trained") == [(8 * policies, 8)]
        assert self.holders("finished").total() == 8
        verify = [sys.executable, "-m", "harnessgym", "traces", "verify", self.store.url, "--json"]
        report = json.loads(
            subprocess.run(verify, capture_output=True, text=True, cwd=ROOT, check=True, timeout=120).stdout
        )
        assert report["checked"]["calls"] >= 8
        assert self.places() == {}
        assert not processes_of(self.folder)
        assert not abandoned()
        return said

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.store.close()


def abandoned():
    """Folders of places that are dead."""
    found = {
        path: path.name.split("-")[2:4] for path in Path(tempfile.gettempdir()).glob("harnessgym-place-*-*-*")
    }
    return [path for path, own in found.items() if not ProcessId(*map(int, own)).alive() and path.exists()]


def test_nodes_join_and_leave_while_a_run_goes_on(tmp_path, database, raylets):
    with ClusterRun(tmp_path, database.create_database(), raylets.address, nodes=1).start() as run:
        run.wait(lambda: run.holders() == {"node-0": 2})
        assert "2 nodes are wanted" in run.nodes("--add", "1")
        run.wait(lambda: run.holders() == {"node-0": 2, "node-1": 2})
        assert set(run.places()) == {"proxy", "engine-0", "node-0", "node-1", "trainer"}
        assert "node-1" in run.nodes("--remove", "1")
        run.wait(lambda: run.present() == 1)
        assert run.holders() == {"node-0": 2, "node-1": 2}  # what it has it keeps
        run.let()
        said = run.finish()
        assert run.holders("finished") == {"node-0": 6, "node-1": 2}
    assert "node-1 process has left" in said
    assert "starting it again" not in said
    assert "sandboxes.process" in (run.folder / "logs" / "node-1.log").read_text()


def test_two_policies_are_trained_from_the_same_rollouts(tmp_path, database, raylets):
    """The trainers have places of their own; so have the engines, each of its policy."""
    with ClusterRun(tmp_path, database.create_database(), raylets.address, nodes=1) as run:
        told = json.loads(run.config.read_text())
        helper = {"name": "helper", "path": told["policy"]["path"]}
        several = {"policies": [helper], "harnesses": write_harnesses(tmp_path, ["pair"])}
        run.config.write_text(json.dumps(told | several))
        said = run.start().finish(policies=2)
        asked = (
            "SELECT p.name, count(DISTINCT c.rollout_id) FROM calls c JOIN policies p ON p.id = c.policy_id"
        )
        assert sorted(run.rows(f"{asked} GROUP BY p.name")) == [("helper", 8), ("policy", 8)]
        made = "SELECT p.name, max(v.step) FROM policy_versions v JOIN policies p ON p.id = v.policy_id"
        assert sorted(run.rows(f"{made} GROUP BY p.name")) == [("helper", 1), ("policy", 1)]
        served = "SELECT DISTINCT c.upstream, p.name FROM calls c JOIN policies p ON p.id = c.policy_id"
        assert sorted(run.rows(served)) == [("engine-0", "policy"), ("engine-1", "helper")]
    assert "starting it again" not in said


def test_a_machine_dies_and_the_run_ends_all_the_same(tmp_path, database, raylets):
    with ClusterRun(tmp_path, database.create_database(), raylets.address, nodes=2).start() as run:
        run.wait(lambda: run.holders() == {"node-0": 2, "node-1": 2})
        dead = set(raylets.kill("second"))
        lost = {name for name in run.places() if run.pid(name) in dead}
        assert lost in ({"engine-0", "node-0"}, {"engine-0", "node-1"})
        gone = [identify(run.pid(name)) for name in lost]
        raylets.add("third", engine=1)
        run.wait(
            lambda: run.places()["engine-0"]["state"] == "running" and run.places()["engine-0"]["restarts"]
        )
        assert not any(process is not None and process.alive() for process in gone)
        run.let()
        said = run.finish()
        node = next(name for name in lost if name != "engine-0")
        staying = {"node-0", "node-1"} - {node}
        assert set(run.holders("finished")) == staying
        assert run.rows("SELECT DISTINCT cause FROM rollouts WHERE status = 'failed'") == [("node_lost",)]
    assert f"The place of {node} has not answered for 10 s" in said


def test_a_killed_supervisor_takes_its_places_along_and_the_same_command_goes_on(tmp_path, database, raylets):
    raylets.add("fourth", engine=1, node=1)
    with ClusterRun(tmp_path, database.create_database(), raylets.address, nodes=1).start() as run:
        run.wait(lambda: run.holders() == {"node-0": 2})
        processes = [identify(run.pid(name)) for name in run.places()]
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 120
        while any(process is not None and process.alive() for process in processes):
            assert time.monotonic() < deadline, "processes outlive their supervisor"
            time.sleep(0.1)
        run.let()
        said = run.finish()
        assert run.rows("SELECT DISTINCT cause FROM rollouts WHERE status = 'failed'") == [("node_lost",)]
    assert "starting it again" not in said


@pytest.mark.soak  # Ray looks for its head for more than half a minute
def test_a_killed_head_is_told_and_with_another_one_the_same_command_goes_on(tmp_path, database, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "36")
    machines = Raylets()
    try:
        machines.add("head", first=2, node=1, engine=1)
        with ClusterRun(tmp_path, database.create_database(), machines.address, nodes=1).start() as run:
            run.wait(lambda: run.holders() == {"node-0": 2})
            processes = [identify(run.pid(name)) for name in run.places()]
            machines.kill("head")
            said = run.end(code=2)
            assert re.search(rf"Ray's head at [\d.]+:{machines.port} has not answered for 18 s", said), said
            assert not any(process is not None and process.alive() for process in processes)
            machines.add("head", first=2, node=1, engine=1)
            run.let()
            run.finish()
    finally:
        machines.close()
