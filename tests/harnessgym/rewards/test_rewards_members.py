"""Rewards on real records: functions, commands in a sandbox, queries, contracts, and what the graph tells."""

import sqlite3
from dataclasses import replace

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError, RewardError
from harnessgym.outcome.failure import StopReason
from harnessgym.reward import RewardContext, Score, make_rewards, rescore, score_all
from harnessgym.rewards.command import scores_of
from harnessgym.rewards.orchestration import parallelism_speedup
from harnessgym.run_config.run import RewardSection
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.store import agents, events, new_id, rewards, rollouts
from harnessgym.store.agents import AgentRow
from harnessgym.store.events import EventRow
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import runs as runs_table
from harnessgym.task import Limits
from harnessgym.traces.graph import GraphEvent, graph

pytestmark = pytest.mark.anyio
HERE = "tests.harnessgym.rewards.test_rewards_members"


@pytest.fixture
def rollout(recording):
    """A rollout that has made two calls of 7 and 4 tokens, and a side call."""
    recording.publish(0)
    _, (rollout_id, _) = recording.group()
    session = recording.session(rollout_id)
    first = session.call(versions=(0,) * 7)
    session.call(after=first)
    session.call(kind="side")
    return rollout_id


@pytest.fixture
def record(recording, rollout):
    return RewardContext(recording.store, rollout)


@pytest.fixture
async def sandbox(tmp_path):
    settings = ProcessSettings(proxy_url="http://127.0.0.1:1", workspace_root=tmp_path / "w")
    async with ProcessBackend(settings) as backend, backend.open(Limits()) as opened:
        yield opened


def members(*sections):
    return make_rewards([validate(RewardSection, raw, "the test") for raw in sections])


async def scores(record, kind, **settings):
    return [
        (row.unit, row.target, row.channel, row.value, row.detail)
        for row in await score_all(members({"type": kind, "settings": settings}), record)
    ]


def count_calls(record):
    return len(record.graph.calls)


def per_call(record):
    return [Score("turn", call, "process.ok", 1.0, "because") for call in record.graph.calls]


def one_score(record):
    return Score("rollout", "", "task.other", 0.5)


def no_score(record):
    return "fine"


def fails(record):
    raise KeyError("lamp")


async def test_a_function_gives_a_number_or_scores(record, rollout):
    assert await scores(record, "code", function=f"{HERE}:count_calls", channel="process.n") == [
        ("rollout", rollout, "process.n", 3.0, None)
    ]
    assert await scores(record, "code", function=f"{HERE}:one_score") == [
        ("rollout", rollout, "task.other", 0.5, None)
    ]
    found = await scores(record, "code", function=f"{HERE}:per_call")
    assert [(unit, target) for unit, target, *_ in found] == [("turn", call) for call in record.graph.calls]


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("code", {"function": f"{HERE}:fails"}, "KeyError: 'lamp'"),
        ("code", {"function": f"{HERE}:no_score"}, "returned 'fine'"),
        ("sql", {"query": "SELECT nothing FROM calls"}, "nothing"),
        ("sql", {"query": "DELETE FROM calls WHERE rollout_id = :rollout_id"}, "readonly"),
        ("sql", {"query": "SELECT max(value) FROM rewards"}, "gives no number"),
        ("sql", {"query": "SELECT 'many'"}, "what a reward|row of the query"),
        ("sql", {"query": "SELECT 1 AS value, 'turn' AS unit, 'nobody' AS target"}, "no such turn"),
        ("command", {"argv": ["true"]}, "needs a sandbox"),
        ("judge", {"model": "w", "question": "?"}, "needs a proxy"),
    ],
)
async def test_what_fails_is_named_and_is_no_score(record, kind, settings, reason):
    with pytest.raises(RewardError, match=reason) as caught:
        await scores(record, kind, **settings)
    assert repr(kind) in str(caught.value)
    assert count_calls(RewardContext(record.store, record.rollout_id)) == 3


async def test_a_query_scores_rows_of_the_trace_database(record, rollout):
    total = "SELECT sum(completion_len) FROM calls WHERE rollout_id = :rollout_id AND kind = 'policy'"
    assert await scores(record, "sql", query=total, channel="cost.tokens") == [
        ("rollout", rollout, "cost.tokens", 11.0, None)
    ]
    turns = """SELECT completion_len AS value, 'turn' AS unit, id AS target, kind AS detail FROM calls
               WHERE rollout_id = :rollout_id AND kind = 'policy' ORDER BY ordinal"""
    found = await scores(record, "sql", query=turns)
    assert [(unit, channel, value, detail) for unit, _, channel, value, detail in found] == [
        ("turn", "task", 7.0, "policy"), ("turn", "task", 4.0, "policy"),
    ]  # fmt: skip
    recorder = RewardRow(rollout, "rollout", rollout, "task", 1.0, "t")
    assert record.store.write(lambda conn: rewards.add(conn, recorder)), "the store can still be written"


async def test_a_query_scores_a_file_of_the_workspace(record, rollout, sandbox, tmp_path):
    with sqlite3.connect(sandbox.workspace / "shop.db") as raw:
        raw.execute("CREATE TABLE orders (id INTEGER)")
        raw.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,)])
    raw.close()
    there = RewardContext(record.store, rollout, sandbox=sandbox)
    query = "SELECT count(*) FROM orders"
    assert (await scores(there, "sql", query=query, database="shop.db"))[0][3] == 2.0
    (sandbox.workspace / "link.db").symlink_to(sandbox.workspace / "shop.db")
    for name in ("link.db", "../shop.db", "none.db", "/etc/passwd"):
        with pytest.raises(RewardError, match="no regular file"):
            await scores(there, "sql", query=query, database=name)
    (sandbox.workspace / "junk.db").write_text("this is no database, whatever its name says")
    with pytest.raises(RewardError, match="not a database"):
        await scores(there, "sql", query=query, database="junk.db")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(RewardError, match="interrupted"):
        await scores(there, "sql", query=endless, database="shop.db", timeout_s=0.2)
    with pytest.raises(RewardError, match="readonly"):
        await scores(there, "sql", query="DELETE FROM orders", database="shop.db")


async def test_a_command_runs_where_the_harness_ran(record, rollout, sandbox):
    (sandbox.workspace / "answer.txt").write_text("42")
    there = RewardContext(record.store, rollout, sandbox=sandbox)
    program = "import json; print('so:'); print(json.dumps({'value': int(open('answer.txt').read()) / 100, 'detail': 'read'}))"
    found = await scores(
        there, "command", argv=["python", "check.py"], files={"check.py": program}, channel="task.answer"
    )
    assert found == [("rollout", rollout, "task.answer", 0.42, "read")]
    with pytest.raises(RewardError, match="exit status 3: oh no"):
        await scores(there, "command", argv=["sh", "-c", "echo oh no >&2; exit 3"])
    with pytest.raises(RewardError, match="timed out after"):
        await scores(there, "command", argv=["sleep", "30"], timeout_s=0.3)


def test_what_a_command_may_print():
    assert scores_of("noise\n0.5\n\n", "c") == [Score("rollout", "", "c", 0.5)]
    assert scores_of('[1, {"value": 2, "channel": "d", "unit": "turn", "target": "x"}]', "c") == [
        Score("rollout", "", "c", 1.0), Score("turn", "x", "d", 2.0),
    ]  # fmt: skip
    for wrong in ("", "fine", '"text"', "[]", "null", "[[1]]"):
        with pytest.raises(RewardError):
            scores_of(wrong, "c")
    with pytest.raises(ConfigError, match="no such setting"):
        scores_of('{"value": 1, "score": 2}', "c")


async def test_contracts_are_kept_or_the_step_is_named(record, rollout, tmp_path):
    (kept,) = await scores(record, "contract", contracts=[{"kind": "budget", "tokens": 11}])
    assert kept == ("rollout", rollout, "process.contract", 1.0, None)
    (tmp_path / "more.toml").write_text('[[contracts]]\nkind = "budget"\ncalls = 1\nname = "one call"\n')
    ((*_, value, detail),) = await scores(record, "contract", file=str(tmp_path / "more.toml"))
    assert value == 0.0
    assert "one call: step 1 (llm_call " in detail
    with pytest.raises(ConfigError, match="give contracts"):
        members({"type": "contract"})


async def test_costs_leave_side_calls_out(record, rollout):
    found = {channel: value for _, _, channel, value, _ in await scores(record, "orchestration")}
    assert (found["cost.tokens"], found["cost.calls"]) == (11.0, 2.0)
    assert 0 < found["cost.wall_s"] < 60
    assert set(found) == {"cost.tokens", "cost.calls", "cost.wall_s"}


@pytest.mark.parametrize(
    ("happened", "speedup"),
    [
        ("a+0 b+0 a-4 b-4 join4", 2.0),
        ("a+0 b+0 a-4 b-2 join4", 1.5),
        ("a+0 a-4 b+4 b-8 join8", 1.0),
        ("a+0 a-4 join8", 0.5),
        ("a+0 b+0 a-4 b-4 join4 c+10 d+10 c-12 d-12 join12", 2.0),
        ("a+0 b+1 a-4", 1.0),
        ("a+0", None),
        ("", None),
    ],
)
async def test_the_parallelism_speedup_is_work_over_time(record, recording, rollout, happened, speedup):
    session = recording.session(rollout)
    known = {}

    def agent(conn, name):
        if name not in known:
            known[name] = AgentRow(new_id(), rollout, session.id, name, name, None, "content")
            agents.add(conn, known[name])
        return known[name].id

    def work(conn):
        main = agent(conn, "main")
        for what in happened.split():
            if what.startswith("join"):
                events.add(conn, EventRow(rollout, "aggregate", t=float(what[4:]), agent_id=main))
            elif what[1] == "+":
                child = agent(conn, what[0])
                events.add(
                    conn, EventRow(rollout, "spawn", t=float(what[2:]), agent_id=main, target_agent_id=child)
                )
            else:
                child = agent(conn, what[0])
                events.add(
                    conn, EventRow(rollout, "return", t=float(what[2:]), agent_id=child, target_agent_id=main)
                )

    recording.store.write(work)
    found = parallelism_speedup(recording.store.read(lambda conn: graph(conn, rollout)))
    assert found == (None if speedup is None else pytest.approx(speedup))


@pytest.mark.parametrize(
    ("times", "speedup"), [([(2, 12), (12, 22)], 1.0), ([(2, 3), (2, 22)], 1.05), ([(2, 22), (2, 22)], 2.0)]
)
async def test_a_child_that_waits_to_be_read_does_not_work(record, times, speedup):
    """As traffic shows it: all that came back is read by one request."""
    call = next(iter(record.graph.calls.values()))
    made, happened = (
        {},
        [GraphEvent("join", "aggregate", 22.0, "main", None, None, {}, None, None, "proxy", None)],
    )
    for child, (begin, end) in enumerate(times):
        name = f"child {child}"
        made[name] = replace(call, id=name, agent_id=name, created_at=begin, timings={"total_s": end - begin})
        for kind, t, who, whom in (("spawn", begin, "main", name), ("return", 22.0, name, "main")):
            happened.append(
                GraphEvent(f"{kind} {child}", kind, float(t), who, whom, None, {}, None, None, "proxy", None)
            )
    assert parallelism_speedup(replace(record.graph, calls=made, events=tuple(happened))) == pytest.approx(
        speedup
    )
    told = tuple(replace(event, source="otlp") for event in happened)
    assert parallelism_speedup(replace(record.graph, calls=made, events=told)) is None


async def test_what_only_spans_tell_counts_where_that_is_said(record, recording, rollout):
    at_most = [{"kind": "at_most", "what": {"step": "human_intervention"}, "n": 0}]
    recording.store.write(
        lambda conn: events.add(conn, EventRow(rollout, "human_intervention", t=1.0, source="otlp"))
    )
    fresh = RewardContext(recording.store, rollout)
    assert [
        (await scores(fresh, "contract", contracts=at_most, spans=spans))[0][3] for spans in (False, True)
    ] == [1.0, 0.0]
    assert (await scores(fresh, "orchestration"))[2][3] < 60


async def test_two_rewards_do_not_speak_for_one_channel(record):
    one = {"type": "code", "settings": {"function": f"{HERE}:one_score"}}
    with pytest.raises(ConfigError, match="named 'code'"):
        members(one, one)
    with pytest.raises(RewardError, match="given by the reward 'code' already"):
        await score_all(members(one, {**one, "name": "again"}), record)
    with pytest.raises(RewardError, match="given by the grader already"):
        await score_all(members(one), record, ["reward", "task.other"])


def test_what_needs_no_sandbox_can_be_computed_again(recording, rollout):
    sections = [
        {"type": "orchestration"},
        {"type": "code", "settings": {"function": f"{HERE}:count_calls"}},
        {"type": "command", "settings": {"argv": ["false"]}},
    ]
    config = {"rewards": sections}
    recording.store.write(lambda conn: conn.execute(runs_table.update().values(config=config)))
    given = [
        RewardRow(rollout, "rollout", rollout, "cost.calls", 2.0, "x"),
        RewardRow(rollout, "rollout", rollout, "task", 1.0, "x"),
    ]
    outcome = RolloutOutcome(rollout, StopReason.FINISHED, "valid", {"reward": 1.0}, scores=tuple(given))
    recording.store.write(lambda conn: rollouts.finish(conn, outcome))
    found = {
        item.row.channel: (item.row.value, item.stored, item.same)
        for item in rescore(recording.store, rollout)
    }
    assert found["cost.calls"] == (2.0, 2.0, True)
    assert found["task"] == (3.0, 1.0, False)
    assert found["cost.tokens"] == (11.0, None, False)
    assert len(found) == 4
