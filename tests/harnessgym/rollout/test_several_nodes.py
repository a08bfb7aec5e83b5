"""Several nodes share a run: they submit no group twice, leave without losing work, and are told apart."""

import asyncio
import contextlib
import socket
import threading

import pytest
from sqlalchemy import select

from harnessgym.rollout.node import NodeSettings, proxy_socket
from harnessgym.rollout.plan import GroupPlan
from harnessgym.store import TraceStore, leases, policies, rollouts, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task

NODES = 4


def ready(store):
    """A run whose engine serves its first version. Returns the ids of run and policy."""
    run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
    policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    first = PolicyVersion(0, None, "full", "", 0, "", 0, committed=True, orphaned=False)
    store.write(lambda conn: policies.publish(conn, policy_id, first))
    store.write(lambda conn: workers.upsert(conn, WorkerRow("engine-0", run_id, "embedded", "", 0, "ready")))
    return run_id, policy_id


@pytest.mark.postgres
def test_nodes_that_submit_at_once_submit_no_group_twice(postgres, make_config):
    url = postgres.create_database()
    config = make_config("good", steps=3, groups_per_step=30)
    with TraceStore.create(url) as store:
        run_id, policy_id = ready(store)
    barrier, errors = threading.Barrier(NODES), []

    def node():
        with TraceStore.open(url) as store:
            plan = GroupPlan(run_id, policy_id, config, "process")
            for status in ("evaluating_before", "training"):
                barrier.wait(60)
                try:
                    store.write(lambda conn, status=status: plan.submit(conn, status))
                except Exception as error:  # noqa: BLE001 - of a thread
                    errors.append(error)

    threads = [threading.Thread(target=node) for _ in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with TraceStore.open(url) as store:
        found = store.read(lambda conn: conn.execute(select(groups.c.purpose, groups.c.ordinal)).all())
    by_purpose = {
        purpose: sorted(ordinal for name, ordinal in found if name == purpose) for purpose, _ in found
    }
    ahead = 1 + -(-config.node.in_flight // config.trainer.group_size)
    assert by_purpose == {
        "before_sampled": [0, 1],
        "before_greedy": [0, 1],
        "train": list(range(min(60, ahead))),
    }
    postgres.drop_database(url)


def test_what_is_submitted_ahead_grows_with_the_nodes(tmp_path, make_config):
    config = make_config(
        "good", steps=9, groups_per_step=50, max_running=2, prepared_ahead=0, evaluate_waiting=0
    )
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id, policy_id = ready(store)
        plan = GroupPlan(run_id, policy_id, config, "process")
        each = config.node.in_flight // config.trainer.group_size
        assert store.write(lambda conn: plan.submit(conn, "training")) == 1 + each
        for number in range(3):
            store.write(
                lambda conn, number=number: leases.announce_node(
                    conn, run_id, f"node-{number}@host-1-1", 60.0
                )
            )
        assert store.write(lambda conn: plan.submit(conn, "training")) == 2 * each


def test_leases_of_a_dead_node_end_and_no_others(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run_id, policy_id = ready(store)
        task = store.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
        spec = GroupSpec(run_id, task, policy_id, "train", 0, 0, {}, ("a",) * 4, "process", (0, 1, 2, 3))
        store.write(lambda conn: rollouts.submit(conn, spec))
        claimed = {}
        for holder in ("node-1@host-1-1", "node-10@host-1-1", "node_1@host-1-1", "wrap-1"):
            (row,) = store.write(lambda conn, holder=holder: rollouts.claim(conn, run_id, holder, 60.0, 1))
            claimed[holder] = row.id
        store.write(lambda conn: rollouts.expire(conn, run_id, "node-1"))
        assert store.read(lambda conn: rollouts.lost(conn, run_id)) == [claimed["node-1@host-1-1"]]
        store.write(lambda conn: rollouts.expire(conn, run_id, "node_1"))
        assert len(store.read(lambda conn: rollouts.lost(conn, run_id))) == 2
        store.write(lambda conn: rollouts.expire(conn, run_id))
        assert set(store.read(lambda conn: rollouts.lost(conn, run_id))) == set(claimed.values()) - {
            claimed["wrap-1"]
        }


@pytest.mark.anyio
async def test_a_node_that_leaves_finishes_what_it_has_and_takes_no_more(make_line, tmp_path):
    async with make_line(
        "gated", tasks="Patient", groups_per_step=2, max_running=1, prepared_ahead=0, evaluate_waiting=0
    ) as line:
        run_id = line.node.plan.run_id

        def statuses():
            return [
                row.status
                for row in line.store.read(lambda conn: conn.execute(select(rollout_table.c.status)).all())
            ]

        serving = asyncio.create_task(line.node.serve())
        async with asyncio.timeout(60):
            while "running" not in statuses():
                await asyncio.sleep(0.02)
            assert line.store.read(lambda conn: leases.nodes(conn, run_id)) == 1
            line.node.leaving.set()
            while line.store.read(lambda conn: leases.nodes(conn, run_id)):
                await asyncio.sleep(0.02)
            assert statuses().count("running") == 1
            assert not serving.done()
            (tmp_path / "mark").touch()
            await serving
        assert sorted(set(statuses())) == ["finished", "pending"]
        assert statuses().count("finished") == 1
        assert f"@{socket.gethostname()}-" in line.node.holder


@pytest.mark.anyio
async def test_without_a_folder_of_the_proxys_socket_connections_are_carried_to_its_address(tmp_path):
    async def shout(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    told = {"run": tmp_path, "control_url": "http://127.0.0.1:1", "control_key": "k", "sandbox": "process"}
    async with proxy_socket(NodeSettings(**told, proxy_url=f"http://{host}:{port}")) as folder:
        assert (folder / "proxy.sock").stat().st_mode & 0o777 == 0o666
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(folder / "proxy.sock")
            writer.write(b"hello" * 50_000)
            writer.write_eof()
            assert await reader.read() == b"HELLO" * 50_000
            writer.close()
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await server.wait_closed()
    assert not folder.exists()
    async with proxy_socket(
        NodeSettings(**told, proxy_url="http://127.0.0.1:1", proxy_socket_dir=tmp_path)
    ) as given:
        assert given == tmp_path
