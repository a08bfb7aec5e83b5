"""A judge: asked through the real proxy in a session of its own, recorded as a side call, never trained
on.
"""

import json

import pytest
from sqlalchemy import select

from harnessgym.config import validate
from harnessgym.errors import RewardError
from harnessgym.reward import RewardContext, make_rewards, score_all
from harnessgym.run_config.run import RewardSection
from harnessgym.store import workers
from harnessgym.store.tables import calls, runs, sessions
from harnessgym.task import Task
from harnessgym.traces.trajectories import rows_of
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream
from proxies.workers import connect_upstream
from tests.proxies.conftest import POLICY, MakeWorld, World

pytestmark = pytest.mark.anyio


def judge(**settings: object) -> object:
    section = {"type": "judge", "settings": {"model": "teacher", "question": "Was it polite?", **settings}}
    return make_rewards([validate(RewardSection, section, "the test")])


def said(language: PolicyLanguage, text: str) -> ScriptedUpstream:
    return ScriptedUpstream([list(language.renderer.encode(f"{text}<|im_end|>"))])


async def talked(world: World) -> RewardContext:
    """A rollout that said hello."""
    session = await world.open()
    assert (await world.chat(session.key, [{"role": "user", "content": "Say hello."}])).status_code == 200
    await world.control.seal(session.session_id)
    return RewardContext(world.store, world.rollout_id, Task("t", "Be nice."), control=world.control)


async def test_a_judge_grades_what_was_said_and_is_recorded(
    make_world: MakeWorld, language: PolicyLanguage
) -> None:
    teacher = said(language, 'It was fine.\n{"grade": 8, "reason": "a warm greeting"}')
    async with make_world(upstreams={"policy-0": said(language, "Hello, dear!")}) as world:
        record = await talked(world)
        await world.add_worker("teacher", teacher)
        (row,) = await score_all(judge(), record)
        assert (row.unit, row.channel, row.value, row.detail) == (
            "rollout",
            "process.judge",
            0.8,
            "a warm greeting",
        )
        (asked,) = teacher.asked
        prompt = language.renderer.written(list(asked.prompt)).decode()
        for part in ("Be nice.", "Was it polite?", "[user] Say hello.", "from 0 to 10"):
            assert part in prompt
        query = select(calls.c.kind, calls.c.side_call, calls.c.upstream, sessions.c.sealed).join(sessions)
        found = world.store.read(lambda conn: conn.execute(query.order_by(calls.c.created_at)).all())
        assert [tuple(item) for item in found] == [
            ("policy", None, "policy-0", True), ("side", "judge", "teacher", True),
        ]  # fmt: skip
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        assert trajectory.incomplete is None
        assert [item.reason for item in trajectory.exclusions] == ["side_call"]
        again = await score_all(judge(low=6, high=10, channel="process.again"), record)
        assert [item.value for item in again] == [0.5]
        assert "process.judge" not in language.renderer.written(list(teacher.asked[1].prompt)).decode()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("It was fine.", "gave no grade"),
        ('{"grade": 11}', "not from 0 to 10"),
        ('{"grade": "high"}', "gave no grade"),
    ],
)
async def test_a_judge_that_gives_no_grade_is_no_reward(
    make_world: MakeWorld, language: PolicyLanguage, answer: str, reason: str
) -> None:
    async with make_world(upstreams={"w0": said(language, "Hello!")}) as world:
        record = await talked(world)
        await world.add_worker("teacher", said(language, answer))
        with pytest.raises(RewardError, match=reason):
            await score_all(judge(), record)
        query = select(sessions.c.sealed)
        assert world.store.read(lambda conn: list(conn.execute(query).scalars())) == [True, True]


async def test_an_outside_model_becomes_a_worker_that_no_policy_call_reaches(
    make_world: MakeWorld, language: PolicyLanguage
) -> None:
    model = "litellm:openai/tiny?api_base=http://127.0.0.1:1/v1&max_retries=0"
    async with make_world(upstreams={"w0": said(language, "Hello!")}) as world:
        record = await talked(world)
        world.proxy.workers._connect = lambda row: connect_upstream(row, language)
        with pytest.raises(RewardError, match=r"litellm:openai/tiny.* was refused"):
            await score_all(judge(model=model), record)
        rows = world.store.read(lambda conn: workers.of_run(conn, world.settings.run_id))
        assert [(row.id, row.kind, row.address) for row in rows] == [(f"judge-{model}", "litellm", model)]
        assert world.store.read(lambda conn: workers.engines_of(conn, world.settings.run_id)) == []
        query = select(calls.c.side_call, calls.c.status).order_by(calls.c.created_at)
        assert [tuple(row) for row in world.store.read(lambda conn: conn.execute(query).all())][-1] == (
            "judge",
            "error",
        )
        session = await world.open()
        assert (await world.chat(session.key, [{"role": "user", "content": "more"}])).status_code == 200


async def test_a_judge_that_is_not_there_is_named(make_world: MakeWorld, language: PolicyLanguage) -> None:
    async with make_world(upstreams={"w0": said(language, "Hello!")}, worker_wait_s=0.2) as world:
        record = await talked(world)
        with pytest.raises(
            RewardError, match=r"'judge' failed\. The judge teacher was refused: .*No teacher worker"
        ):
            await score_all(judge(), record)


async def test_the_transcript_reaches_the_judge_with_what_the_policy_said(
    make_world: MakeWorld, language: PolicyLanguage
) -> None:
    teacher = said(language, json.dumps({"grade": 1, "reason": "x"}))
    async with make_world(upstreams={"w0": said(language, "Hello, dear!")}) as world:
        world.store.write(
            lambda conn: conn.execute(runs.update().values(config={"policy": {"path": str(POLICY)}}))
        )
        record = await talked(world)
        await world.add_worker("teacher", teacher)
        await score_all(judge(), record)
        assert "[main] Hello, dear!" in language.renderer.written(list(teacher.asked[0].prompt)).decode()
