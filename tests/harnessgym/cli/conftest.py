"""Two rollouts of one group as a real proxy records them: a planner that starts two workers, titles its
session, and loses its history once; the second rollout goes another way in its last answer.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from harnessgym.cli.traces import app
from harnessgym.harness import SideCallRule
from harnessgym.outcome.failure import StopReason
from harnessgym.proxy_client import trust_for
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import TraceStore, ledger, policies, rewards, rollouts, runs
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.ledger import ExcludedTokens, StepRecord, TrainedRollout
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.task import Task
from harnessgym.traces.trajectories import Trajectory, rows_of
from proxies.app import ProxySettings
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import KEY, POLICY, World

TOOLS = [
    {
        "type": "function",
        "function": {"name": "Task", "description": "Start a worker.", "parameters": {"type": "object"}},
    },
    {
        "type": "function",
        "function": {"name": "get", "description": "Get.", "parameters": {"type": "object"}},
    },
]
PLANNER = {"x-session-id": "planner"}


def calling(*calls: tuple[str, dict[str, str]]) -> str:
    made = "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"
        for name, given in calls
    )
    return f"{made}<|im_end|>"


def answers(last: str) -> list[str]:
    """In the order in which the planner and its workers ask."""
    return [
        "Stock prices<|im_end|>",
        calling(("Task", {"prompt": "Count the apples."}), ("Task", {"prompt": "Count the pears."})),
        calling(("get", {"key": "apples"})),
        "There are 3 apples.<|im_end|>",
        "There are 4 pears.<|im_end|>",
        "7 in all.<|im_end|>",
        f"{last}<|im_end|>",
    ]


@dataclass
class Recorded:
    """The database, and what is in it."""

    path: Path
    rollouts: tuple[str, str]
    run_id: str
    calls: int = 7

    def trajectory(self, at: int = 0) -> Trajectory:
        with TraceStore.open(f"sqlite:///{self.path}") as store:
            return store.read(lambda conn: rows_of(conn, self.rollouts[at], group_id=""))


async def harness(world: World, rollout_id: str) -> None:
    """What an agent harness with sub-agents asks."""
    rules = (SideCallRule(kind="side", name="title", system_pattern="Write a title"),)
    session = await world.control.open_session(rollout_id, options=SessionOptions(side_calls=rules))

    async def say(messages: list[dict[str, Any]], who: dict[str, str]) -> dict[str, Any]:
        url = f"{world.base(session)}/v1/chat/completions"
        sent = {"model": "m", "messages": messages, "tools": TOOLS}
        response = await world.http.post(url, json=sent, headers=who)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    def result(asked: dict[str, Any], at: int, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": asked["tool_calls"][at]["id"], "content": text}

    await say(
        [{"role": "system", "content": "Write a title"}, {"role": "user", "content": "Count the fruit."}],
        PLANNER,
    )
    opening = [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Count the fruit."}]
    asked = await say(opening, PLANNER)
    said = []
    for name, fruit in (("w1", "apples"), ("w2", "pears")):
        who = {"x-session-id": name, "x-parent-session-id": "planner"}
        task = [
            {"role": "system", "content": "You work."},
            {"role": "user", "content": f"Count the {fruit}."},
        ]
        answer = await say(task, who)
        if answer.get("tool_calls"):
            answer = await say([*task, answer, result(answer, 0, "3")], who)
        said.append(answer["content"])
    history = [*opening, asked, *(result(asked, at, text) for at, text in enumerate(said))]
    total = await say(history, PLANNER)
    rewritten = [opening[0], {"role": "user", "content": "Count the fruit, quickly."}]
    await say([*rewritten, total, {"role": "user", "content": "And again?"}], PLANNER)
    await world.control.seal(session.session_id)


def finish(store: TraceStore, rollout_id: str, group_id: str) -> None:
    store.write(
        lambda conn: rollouts.finish(
            conn, RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
        )
    )
    note = RewardRow(rollout_id, "rollout", rollout_id, "process.brevity", 0.25, "test", "short enough")
    store.write(lambda conn: rewards.add(conn, note))


def train(store: TraceStore, policy_id: str, group_id: str, rollout_ids: list[str]) -> None:
    """One step: the first token of every answer gets another advantage than the rest."""
    trained, excluded = [], []
    for name in rollout_ids:
        made = store.read(lambda conn, name=name: rows_of(conn, name, group_id=group_id))
        ranges = [
            item
            for row in made.rows
            for turn in row.turns
            if row.mask[turn.start]
            for item in (
                AdvantageRange(turn.call_id, 0, 1, 2.0),
                AdvantageRange(turn.call_id, 1, turn.end - turn.start, -0.5),
            )
        ]
        trained.append(TrainedRollout(name, made.trained, 0, tuple(ranges)))
        excluded += [
            ExcludedTokens(name, item.call_id, item.start, item.end, item.reason) for item in made.exclusions
        ]
    version = PolicyVersion(1, 0, "full", str(POLICY), 1, "", 0, committed=True, orphaned=False)
    store.write(
        lambda conn: ledger.commit_step(
            conn, policy_id, StepRecord(version, (group_id,), tuple(trained), tuple(excluded))
        )
    )


async def record(path: Path) -> Recorded:
    language = PolicyLanguage.of_policy(POLICY)
    with TraceStore.create(f"sqlite:///{path}") as store:
        run_id = store.write(
            lambda conn: runs.add(conn, "test", {"policy": {"path": str(POLICY)}}, "0", "training")
        )
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        start = PolicyVersion(0, None, "full", str(POLICY), 0, "", 0, committed=True, orphaned=False)
        store.write(lambda conn: policies.publish(conn, policy_id, start))
        task_id = store.write(lambda conn: runs.add_task(conn, "fruit", Task("count", "Count the fruit.")))
        spec = rollouts.GroupSpec(
            run_id, task_id, policy_id, "train", 0, 0, {}, ("a", "b"), "process", (0, 1)
        )
        group_id = store.write(lambda conn: rollouts.submit(conn, spec))
        claimed = store.write(lambda conn: rollouts.claim(conn, run_id, "node", 60.0, 2))
        settings = ProxySettings(
            store=store.url,
            run_id=run_id,
            policy=POLICY,
            control_key=KEY,
            port=0,
            control_port=0,
            max_length=4_000,
        )
        async with httpx.AsyncClient(timeout=60.0, trust_env=False, verify=trust_for("http:")) as http:
            world = World(store, settings, claimed[0].id, language, {}, http)
            said = [*answers("Seven."), *answers("Still seven.")]
            world.upstreams = {"w0": ScriptedUpstream([world.text(answer) for answer in said])}
            await world.start()
            try:
                for row in claimed:
                    await harness(world, row.id)
            finally:
                await world.stop()
        for row in claimed:
            finish(store, row.id, group_id)
        train(store, policy_id, group_id, [row.id for row in claimed])
    return Recorded(path, (claimed[0].id, claimed[1].id), run_id)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Read only: every test has the same one."""
    return asyncio.run(record(tmp_path_factory.mktemp("recorded") / "traces.db"))


Ask = Callable[..., Result]


@pytest.fixture
def ask() -> Ask:
    """`ask("tree", path, "latest")`: a command of `harnessgym traces`, in this process."""

    def run(*words: object, status: int = 0) -> Result:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words])
        assert result.exit_code == status, (result.output, result.exception)
        return result

    return run
