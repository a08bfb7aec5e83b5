import asyncio
import json
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from harnessgym.errors import ConfigError
from harnessgym.proxy_client import trust_for
from harnessgym.rollout.endpoints import Endpoints, served
from harnessgym.run_folder import RunFolder
from harnessgym.store import rollouts, runs
from tests.harnessgym.rollout.tiny import HERE

pytestmark = pytest.mark.anyio
SET = f"{HERE}:Tiny"
INLINE = {
    "id": "mine/1",
    "instruction": "Answer.",
    "grader": f"{HERE}:grade",
    "limits": {"wall_s": 9.0, "turns": 4},
}


@pytest.fixture
def make_served(make_line):
    @asynccontextmanager
    async def make(*names, keep_alive_s=10.0, run=True, **options):
        """A node that plans nothing, its endpoints, and a client that has the key."""
        async with make_line(*names, status="evaluating_after", **options) as line:
            config = line.node.plan.config
            evaluation = config.evaluation.model_copy(update={"tasks": 0})
            line.node.plan.config = config.model_copy(update={"evaluation": evaluation})
            endpoints = Endpoints(line.node, "process", "policy", "the-key", keep_alive_s)
            running = asyncio.create_task(line.run(lambda _: False)) if run else None
            async with served(endpoints, "127.0.0.1:0") as url:
                headers = {"authorization": "Bearer the-key"}
                async with httpx.AsyncClient(
                    base_url=url, headers=headers, trust_env=False, verify=trust_for("http:"), timeout=60.0
                ) as http:
                    try:
                        yield line, http
                    finally:
                        if running is not None:
                            line.store.write(
                                lambda conn: runs.set_status(conn, line.node.plan.run_id, "done")
                            )
                            await running

    return make


async def submit(http, **body):
    response = await http.post("/rollouts", json={"task": {"set": SET, "id": "tiny/train/0"}, **body})
    assert response.status_code == 201, response.text
    return response.json()


async def final(http, rollout_id, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        state = (await http.get(f"/rollouts/{rollout_id}")).json()
        if state["final"]:
            return state
        await asyncio.sleep(0.05)
    raise AssertionError(state)


async def stream(http, until, headers=None, **params):
    """Events of a stream as (id, kind, data), until `until(events)` or its end; comments as (None,
    "comment", text).
    """
    events, current = [], {}
    async with http.stream("GET", "/rollouts/events", params=params, headers=headers or {}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith(":"):
                events.append((None, "comment", line))
            elif line:
                name, _, value = line.partition(": ")
                current[name] = value
            elif current:
                events.append((current["id"], current["event"], json.loads(current["data"])))
                current = {}
            if until(events):
                return events
    return events


async def test_a_task_of_a_set_is_run_graded_and_fetched(make_served):
    async with make_served("good") as (_, http):
        made = await submit(http, samples=2, sampling={"temperature": 0.7, "max_tokens": 16})
        assert len(made["rollouts"]) == 2
        for slot, rollout_id in enumerate(made["rollouts"]):
            state = await final(http, rollout_id)
            assert (state["status"], state["verdict"], state["reward"], state["slot"]) == (
                "finished",
                "valid",
                1.0,
                slot,
            )
            assert (state["task_set"], state["task"], state["cause"], state["calls"]) == (
                SET,
                "tiny/train/0",
                None,
                1,
            )
            assert state["latencies"]["run"] > 0
            found = (await http.get(f"/rollouts/{rollout_id}/trajectory")).json()
            (row,) = found["rows"]
            assert len(row["ids"]) == len(row["mask"]) == len(row["logprobs"]) == len(row["versions"])
            assert sum(row["mask"]) == found["sampled"] == found["trained"] == state["tokens"] > 0
            assert {version for version, mask in zip(row["versions"], row["mask"], strict=True) if mask} == {
                0
            }
            assert found["rewards"] == {"reward": 1.0}
            assert found["incomplete"] is None


async def test_a_trajectory_is_what_trainers_get(make_served):
    from harnessgym.traces.trajectories import rows_of

    async with make_served("good") as (line, http):
        made = await submit(http)
        (rollout_id,) = made["rollouts"]
        await final(http, rollout_id)
        (row,) = (await http.get(f"/rollouts/{rollout_id}/trajectory")).json()["rows"]
        (ours,) = line.store.read(lambda conn: rows_of(conn, rollout_id, group_id=made["group"])).rows
        assert row["ids"] == ours.ids.tolist()
        assert row["mask"] == ours.mask.tolist()
        assert row["logprobs"] == pytest.approx(ours.logprobs.tolist(), abs=1e-6)
        assert row["versions"] == ours.versions.tolist()


async def test_a_task_that_comes_with_the_request_is_run_by_any_node(make_served):
    """It is in the store, whole: files and set-up too."""
    task = INLINE | {
        "files": {"a.txt": "x"},
        "setup": {"run": [["sh", "-c", "test -s a.txt && cp a.txt answer.txt"]]},
    }
    async with make_served("never_calls", "good") as (line, http):
        made = (await http.post("/rollouts", json={"task": task, "harness": "good"})).json()
        state = await final(http, made["rollouts"][0])
        assert (state["verdict"], state["reward"], state["task_set"], state["task"]) == (
            "valid",
            1.0,
            "inline",
            "mine/1",
        )
        (row,) = line.rollouts()
        assert row["latencies"]["prepare.setup"] > 0


async def test_a_failure_tells_its_cause_and_what_continues_it(make_served):
    async with make_served("never_calls", max_attempts=2, abort_after_failures=99) as (_, http):
        made = await submit(http)
        events = await stream(http, lambda _: False, rollout=made["rollouts"][0])
        first = (await http.get(f"/rollouts/{made['rollouts'][0]}")).json()
        assert (first["status"], first["cause"], first["verdict"], first["final"]) == (
            "failed",
            "no_calls",
            "infrastructure_error",
            False,
        )
        last = (await http.get(f"/rollouts/{first['continued_by']}")).json()
        assert (last["attempt"], last["final"], last["reward"], last["continued_by"]) == (1, True, None, None)
        ended = [data["attempt"] for _, kind, data in events if kind == "ended"]
        assert ended == [0, 1], "the stream follows the slot, and ends with it"
        for at, (event_id, _, _) in enumerate(events):
            again = await asyncio.wait_for(
                stream(http, lambda _: False, {"last-event-id": event_id}, rollout=made["rollouts"][0]), 5.0
            )
            assert [one[0] for one in again] == [one[0] for one in events[at + 1 :]], (
                "it ends also for one that comes back"
            )


async def test_all_changes_are_streamed_and_a_client_that_comes_back_misses_and_repeats_nothing(make_served):
    async with make_served("good") as (_, http):
        begun = time.time()
        watching = asyncio.create_task(stream(http, lambda events: len(events) == 9, since=begun))
        made = await submit(http, samples=3)
        events = await asyncio.wait_for(watching, 20.0)
        by_rollout = {}
        for _, kind, data in events:
            by_rollout.setdefault(data["id"], []).append(kind)
        assert by_rollout == {one: ["submitted", "started", "ended"] for one in made["rollouts"]}
        ids = [event_id for event_id, _, _ in events]
        assert len(set(ids)) == 9
        for at in (0, 4, 7):
            again = await stream(
                http, lambda found, at=at: len(found) == 8 - at, headers={"last-event-id": ids[at]}
            )
            assert [event_id for event_id, _, _ in again] == ids[at + 1 :]


async def test_a_quiet_stream_is_kept_alive(make_served):
    async with make_served("good", keep_alive_s=0.2) as (_, http):
        events = await asyncio.wait_for(stream(http, lambda events: len(events) == 3), 5.0)
        assert {kind for _, kind, _ in events} == {"comment"}


async def test_a_running_rollout_is_cancelled(make_served):
    async with make_served("sleeps") as (line, http):
        (rollout_id,) = (await submit(http))["rollouts"]
        while line.node.stages.run.running == 0:
            await asyncio.sleep(0.02)
        early = await http.get(f"/rollouts/{rollout_id}/trajectory")
        assert early.status_code == 409
        assert "running" in early.json()["detail"]
        answer = (await http.delete(f"/rollouts/{rollout_id}")).json()
        assert (answer["status"], answer["cancelled_now"], answer["final"]) == ("cancelled", True, True)
        deadline = time.monotonic() + 30
        while line.node.running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert not line.node.running
        assert (await http.delete(f"/rollouts/{rollout_id}")).json()["cancelled_now"] is False


async def test_a_group_has_a_name_so_that_asking_twice_makes_one(make_served):
    async with make_served("good", run=False) as (_, http):
        first = await submit(http, samples=2, group="step-7")
        again = await submit(http, samples=2, group="step-7")
        assert (first["rollouts"], first["new"], again["new"]) == (again["rollouts"], True, False)
        other = await http.post("/rollouts", json={"task": INLINE, "samples": 2, "group": "step-7"})
        assert other.status_code == 409
        assert "'step-7'" in other.json()["detail"]
        assert (await submit(http, samples=2))["rollouts"] != first["rollouts"]
        seeds = {row["id"]: row["seed"] for row in (await http.get("/rollouts")).json()["rollouts"]}
        assert len({seeds[one] for one in first["rollouts"]}) == 2


async def test_rollouts_are_listed_by_condition_and_page(make_served):
    async with make_served("good", run=False) as (line, http):
        made = [await submit(http, samples=2) for _ in range(3)]
        every = [one for group in made for one in group["rollouts"]]
        line.store.write(lambda conn: rollouts.cancel(conn, every[:1]))
        page = (await http.get("/rollouts", params={"limit": 4})).json()
        rest = (await http.get("/rollouts", params={"limit": 4, "after": page["next"]})).json()
        assert [row["id"] for row in page["rollouts"] + rest["rollouts"]] == every
        assert rest["next"] is None
        by_group = (await http.get("/rollouts", params={"group": made[1]["group"]})).json()["rollouts"]
        assert [row["id"] for row in by_group] == made[1]["rollouts"]
        gone = (await http.get("/rollouts", params={"status": "cancelled"})).json()["rollouts"]
        assert [row["id"] for row in gone] == every[:1]


async def test_health_has_the_stages(make_served):
    async with make_served("sleeps", "good") as (line, http):
        await submit(http, harness="sleeps")
        while line.node.stages.run.running == 0:
            await asyncio.sleep(0.02)
        found = (await http.get("/health")).json()
        assert [stage["name"] for stage in found["stages"]] == ["prepare", "run", "reconstruct", "evaluate"]
        assert (found["stages"][1]["running"], found["claimed"], found["sandboxes"]) == (1, 1, 1)
        assert (found["rollouts"], found["harnesses"]) == ({"running": 1}, ["good", "sleeps"])


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "task: Field required"),
        ({"task": {"set": SET, "id": "gone"}}, 404, "has no task 'gone'. It has, for example: tiny/train/0"),
        ({"task": {"set": "nowhere", "id": "x"}}, 422, "There are no tasks 'nowhere'"),
        ({"task": INLINE, "harness": "codx"}, 422, "no harness 'codx'. Give one of: good"),
        ({"task": INLINE, "samples": 0}, 422, "samples: Input should be greater than or equal to 1 (got 0)"),
        ({"task": INLINE, "sample": 2}, 422, "sample: there is no such field"),
        ({"task": INLINE, "sampling": {"temprature": 1}}, 422, "sampling.temprature: there is no such field"),
        (
            {"task": INLINE | {"limits": {"wall_s": -1}}},
            422,
            "task.limits.wall_s: Input should be greater than 0",
        ),
        ({"task": INLINE | {"limits": {"wall": 1}}}, 422, "task.limits.wall: there is no such field"),
        ({"task": INLINE | {"files": {"../x": ""}}}, 422, "must be a relative path inside the workspace"),
        ({"task": INLINE | {"grader": "nowhere:grade"}}, 422, "nowhere"),
        ({"task": INLINE | {"needs": ["gpu"]}}, 422, "needs gpu"),
        ({"task": INLINE | {"image": "debian:13"}}, 422, "does not offer image"),
        ({"task": INLINE, "group": "../x"}, 422, "group: String should match pattern"),
    ],
)
async def test_a_wrong_request_is_taught(make_served, body, status, words):
    async with make_served("good", run=False) as (_, http):
        response = await http.post("/rollouts", json=body)
        assert response.status_code == status, response.text
        assert words in response.json()["detail"]
        assert (await http.get("/rollouts")).json()["rollouts"] == []


async def test_what_is_not_there_and_what_is_no_json_is_told(make_served):
    async with make_served("good", run=False) as (_, http):
        for method, path in (("GET", ""), ("GET", "/trajectory"), ("DELETE", "")):
            response = await http.request(method, f"/rollouts/{'0' * 24}{path}")
            assert response.status_code == 404
            assert "GET /rollouts lists" in response.json()["detail"]
        assert (await http.get("/rollouts/events", params={"rollout": "x"})).status_code == 404
        response = await http.get("/rollouts/events", headers={"last-event-id": "yesterday"})
        assert response.status_code == 422
        assert "is no event's id" in response.json()["detail"]
        response = await http.post("/rollouts", content=b"{", headers={"content-type": "application/json"})
        assert response.status_code == 422
        assert "JSON" in response.json()["detail"]
        assert (await http.get("/rollouts", params={"limit": 0})).status_code == 422


async def test_nothing_is_told_without_the_key(make_served):
    async with make_served("good", run=False) as (_, http):
        for headers in (
            {"authorization": "Bearer wrong"},
            {"authorization": ""},
            {"authorization": "Basic the-key"},
        ):
            for path in ("/rollouts", "/health", "/rollouts/events"):
                response = await http.get(path, headers=headers)
                assert response.status_code == 401
                assert "endpoints.json" in response.json()["detail"]
            assert (await http.post("/rollouts", json={"task": INLINE}, headers=headers)).status_code == 401
        assert (await http.get("/openapi.json", headers={"authorization": ""})).status_code == 404
        assert (await http.get("/rollouts")).json()["rollouts"] == []


async def test_address_and_key_are_in_the_run_folder_while_it_is_served(make_line, tmp_path):
    async with make_line("good") as line:
        folder = RunFolder(tmp_path / "run")
        async with served(Endpoints(line.node, "process", "policy", "k"), "127.0.0.1:0", folder) as url:
            told = json.loads((folder.root / "endpoints.json").read_text())
            assert told == {"url": url, "key": "k"}
            assert (folder.root / "endpoints.json").stat().st_mode & 0o077 == 0
            with pytest.raises(ConfigError, match="Choose another address"):
                async with served(
                    Endpoints(line.node, "process", "policy", "k"), url.removeprefix("http://")
                ):
                    pass
        assert not (folder.root / "endpoints.json").exists()


@pytest.mark.parametrize("address", ["", "8200", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
async def test_an_address_that_is_none_is_refused(make_line, address):
    async with make_line("good") as line:
        with pytest.raises(ConfigError, match=r"HOST:PORT|Cannot serve"):
            async with served(Endpoints(line.node, "process", "policy", "k"), address):
                pass


async def test_a_stream_does_not_keep_the_server_from_ending(make_served):
    async with make_served("good") as (_, http):
        watching = asyncio.create_task(stream(http, lambda _: False))
        await asyncio.sleep(0.3)
        began = time.monotonic()
    assert time.monotonic() - began < 4.0
    await asyncio.gather(watching, return_exceptions=True)
