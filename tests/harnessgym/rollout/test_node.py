import time
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from harnessgym.errors import SandboxError, TaskError
from harnessgym.process import identify
from harnessgym.rollout.node import NodeSettings, make_backend
from harnessgym.rollout.plan import GroupPlan
from harnessgym.store import rewards as rollout_rewards
from harnessgym.store.tables import exclusions, groups, rewards
from harnessgym.task import Limits
from proxies.upstreams.scripted import Failure, ScriptedUpstream

pytestmark = pytest.mark.anyio


def one_group(line):
    return line.groups().get("open", 0) == 0 and sum(line.groups().values()) >= 1


def living(pids):
    return [pid for pid in pids if (found := identify(pid)) is not None and found.alive()]


def count(line, table):
    return line.store.read(lambda conn: conn.execute(select(func.count()).select_from(table)).scalar_one())


async def test_a_good_harness_finishes_with_rewards(make_line):
    async with make_line("good") as line:
        await line.run(one_group)
        assert [(row["stop_reason"], row["verdict"]) for row in line.rollouts()] == [
            ("finished", "valid")
        ] * 2
        (group,) = line.complete()
        assert [member.reward for member in group.members] == [1.0, 1.0]
        stages = {"prepare", "run", "reconstruct", "evaluate"}
        parts = {"prepare.open", "wait.room", *(f"wait.{stage}" for stage in stages)}
        latencies = line.rollouts()[0]["latencies"]
        assert set(latencies) == stages | parts
        assert latencies["prepare.open"] <= latencies["prepare"]
        assert min(latencies.values()) >= 0.0


@pytest.mark.parametrize(
    ("harness", "words"), [("crashes_after", "cannot read the answer"), ("aborts", "signal 6")]
)
async def test_a_crash_after_a_call_is_the_policys_affair(make_line, harness, words):
    async with make_line(harness) as line:
        await line.run(one_group)
        for row in line.rollouts():
            assert (row["stop_reason"], row["verdict"]) == ("harness_error", "valid")
            assert words in row["detail"]
        assert [member.reward for member in line.complete()[0].members] == [0.0, 0.0]


async def test_a_hanging_harness_is_killed_with_all_it_started(make_line, tmp_path):
    async with make_line("hangs", tasks="Impatient") as line:
        await line.run(one_group)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {("timeout", "valid")}
        assert "timed out after" in line.rollouts()[0]["detail"]
    pids = [int(pid) for pid in (tmp_path / "mark").read_text().split()]
    assert len(pids) == 4
    deadline = time.monotonic() + 30
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert living(pids) == []


async def test_a_flood_of_output_is_cut_and_named(make_line):
    async with make_line("floods") as line:
        await line.run(one_group)
        for row in line.rollouts():
            assert (row["stop_reason"], row["verdict"]) == ("output_limit", "valid")
            assert "Output beyond the limit was dropped" in row["detail"]
            assert len(row["detail"]) < 5_000


async def test_a_harness_that_never_stops_asking_meets_the_turn_limit(make_line):
    async with make_line("talks") as line:
        await line.run(one_group)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {("turn_limit", "valid")}
        assert len(line.upstream.asked) == 8


async def test_a_group_may_have_a_turn_limit_below_its_tasks(make_line):
    async with make_line("talks") as line:
        line.store.write(lambda conn: line.node.plan.submit(conn, "training"))
        told = line.store.read(lambda conn: conn.execute(select(groups.c.sampling)).scalar_one())
        line.store.write(lambda conn: conn.execute(update(groups).values(sampling=told | {"turns": 2})))
        await line.run(one_group)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {("turn_limit", "valid")}
        assert len(line.upstream.asked) == 4


async def test_a_harness_that_would_break_a_contract_is_stopped(make_line):
    async with make_line("talks", session={"contracts": [{"kind": "budget", "calls": 2}]}) as line:
        await line.run(one_group)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {
            ("contract_violated", "valid")
        }
        assert len(line.upstream.asked) == 4


async def test_rewards_are_asked_after_the_grader_and_written_with_the_verdict(make_line):
    wanted = [
        {"type": "orchestration"},
        {"type": "contract", "settings": {"contracts": [{"kind": "budget", "calls": 1}]}},
        {
            "name": "length",
            "type": "command",
            "settings": {"argv": ["sh", "-c", "wc -c < answer.txt"], "channel": "task.x"},
        },
    ]
    async with make_line("good", rewards=wanted) as line:
        await line.run(one_group)
        for row in line.rollouts():
            found = line.store.read(lambda conn, name=row["id"]: rollout_rewards.of_rollout(conn, name))
            given = {item.channel: (item.value, item.source) for item in found}
            assert given["reward"] == (1.0, "grader")
            assert given["cost.calls"] == (1.0, "orchestration")
            assert given["process.contract"] == (1.0, "contract")
            assert given["task.x"] == (float(len("Hello!")), "length")


async def test_a_reward_that_fails_is_an_infrastructure_error(make_line):
    broken = {"type": "command", "settings": {"argv": ["false"]}}
    async with make_line("good", rewards=[broken], max_attempts=1) as line:
        with pytest.raises(SandboxError, match="in a row"):
            await line.run(lambda _: False)
        assert {row["verdict"] for row in line.rollouts()} == {"infrastructure_error"}
        assert "The reward 'command'" in line.rollouts()[0]["detail"]
        assert count(line, rewards) == 0


@pytest.mark.parametrize(
    ("harness", "words"), [("never_calls", "nothing to do"), ("crashes_before", "no configuration")]
)
async def test_a_harness_that_never_calls_is_tried_again_and_then_ends_the_node_with_one_error(
    make_line, harness, words
):
    async with make_line(harness, max_attempts=3) as line:
        with pytest.raises(SandboxError, match="in a row") as caught:
            await line.run(lambda _: False)
        for part in ("6 rollouts", "never called the proxy", words, "start the run again"):
            assert part in str(caught.value)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {
            ("no_calls", "infrastructure_error")
        }
        assert {row["attempt"] for row in line.rollouts()} == {0, 1, 2}
        assert line.groups()["dropped"] >= 1
        assert count(line, rewards) == 0


async def test_a_harness_whose_every_request_is_refused_is_told_why(make_line):
    async with make_line("is_refused", max_attempts=1) as line:
        with pytest.raises(SandboxError, match=r"refused the harness's 1 requests.*unheard_of"):
            await line.run(lambda _: False)
        assert {row["stop_reason"] for row in line.rollouts()} == {"no_calls"}


async def test_beside_a_broken_harness_the_good_one_goes_on_in_reduced_groups(make_line):
    async with make_line(
        "good", "never_calls", group_size=4, groups_per_step=3, abort_after_failures=24
    ) as line:
        await line.run(lambda line: line.groups().get("complete", 0) == 3)
        for group in line.complete():
            assert [member.reward for member in group.members] == [1.0, 1.0]
        by_harness = {(row["harness"], row["stop_reason"], row["status"]) for row in line.rollouts()}
        assert by_harness == {("good", "finished", "finished"), ("never_calls", "no_calls", "failed")}
        assert max(row["attempt"] for row in line.rollouts()) == 2
        assert line.groups() == {"complete": 3}


async def test_groups_that_are_dropped_without_end_end_the_node(make_line):
    """One rollout of two is left in every group, so that failures are never many in a row and yet nothing
    can be trained.
    """
    async with make_line(
        "good", "never_calls", max_running=1, max_attempts=1, abort_after_failures=3
    ) as line:
        with pytest.raises(SandboxError, match=r"(?s)\d groups in a row were dropped.*never_calls"):
            await line.run(lambda _: False)
        assert "complete" not in line.groups()


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ("Raising", "grade_raising' of task 'tiny/train/.' failed: KeyError: 'metadata'"),
        ("Rewardless", 'gave no channel "reward" .it gave: style'),
        ("NotANumber", "is a finite number"),
        ("Containers", "does not offer image"),
    ],
)
async def test_what_is_not_the_policys_fault_is_never_a_reward(make_line, tasks, words):
    async with make_line("good", tasks=tasks, abort_after_failures=2, max_running=1) as line:
        with pytest.raises(SandboxError, match=words):
            await line.run(lambda _: False)
        assert {(row["stop_reason"], row["verdict"]) for row in line.rollouts()} == {
            ("sandbox_error", "infrastructure_error")
        }
        assert count(line, rewards) == 0


async def test_tokens_of_a_failed_rollout_are_excluded(make_line):
    async with make_line("good", tasks="Raising", abort_after_failures=2, max_running=1) as line:
        with pytest.raises(SandboxError):
            await line.run(lambda _: False)
        found = line.store.read(lambda conn: conn.execute(select(exclusions.c.reason)).scalars().all())
        assert found
        assert set(found) <= {"infrastructure_error", "group_dropped"}


async def test_a_tampered_rollout_has_a_verdict_and_no_reward(make_line):
    async with make_line("good", tasks="Cheated") as line:
        await line.run(one_group)
        assert {row["verdict"] for row in line.rollouts()} == {"tampered"}
        assert {row["detail"] for row in line.rollouts()} == {"the answer was there before"}
        assert [member.reward for member in line.complete()[0].members] == [0.0, 0.0]


async def test_an_engine_that_refuses_is_infrastructure(make_line, language):
    broken = ScriptedUpstream([[5, 6]], failures=[Failure(after=1, lost=False)] * 99)
    async with make_line("good", upstream=broken, abort_after_failures=2, max_running=1) as line:
        with pytest.raises(SandboxError, match="engine_error"):
            await line.run(lambda _: False)
        assert {row["verdict"] for row in line.rollouts()} == {"infrastructure_error"}


async def test_a_workspace_that_cannot_be_made_is_infrastructure(make_line, tmp_path):
    async with make_line("good", abort_after_failures=2, max_running=1) as line:
        root = line.node.pipeline.backend.root
        root.rename(tmp_path / "elsewhere")
        try:
            with pytest.raises(SandboxError, match="The machine refused: FileNotFoundError"):
                await line.run(lambda _: False)
        finally:
            (tmp_path / "elsewhere").rename(root)


async def test_workspaces_do_not_outlive_their_rollouts(make_line, tmp_path):
    async with make_line("good", "crashes_after") as line:
        await line.run(one_group)
        assert list(line.node.pipeline.backend.root.iterdir()) == []
    assert list((tmp_path / "workspaces").iterdir()) == []


async def test_a_task_set_that_lost_a_task_is_named(make_line):
    async with make_line("good") as line:
        with pytest.raises(TaskError, match="has no task 'gone'"):
            line.node.plan.task("gone")


def test_a_task_set_without_training_tasks_is_refused(make_config):
    with pytest.raises(TaskError, match="no training tasks"):
        GroupPlan("run", "policy", make_config("good", tasks="Empty"), "process")


async def test_a_finished_run_ends_its_node(make_line):
    async with make_line("good", status="done") as line:
        await line.run(lambda _: False, timeout_s=30.0)
        assert line.rollouts() == []


@pytest.mark.bubblewrap
async def test_what_a_run_hides_is_not_there_in_its_sandboxes(tmp_path):
    settings = NodeSettings(
        run=tmp_path,
        control_url="http://127.0.0.1:1",
        control_key="k",
        proxy_url="http://127.0.0.1:1",
        sandbox="bubblewrap",
        proxy_socket_dir=tmp_path,
    )
    look = ["sh", "-c", "ls /usr/share | wc -l"]
    for hidden, empty in (((), False), ((Path("/usr/share"),), True)):
        backend = make_backend(settings, tmp_path / "w", hidden=hidden)
        async with backend, backend.open(Limits()) as sandbox:
            assert ((await sandbox.exec(look)).stdout.strip() == b"0") is empty
