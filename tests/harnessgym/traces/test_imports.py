"""Imports: documents that are not ours, graphs and conversations made by hypothesis, and what is wrong
with a document.
"""

import json
import os
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from harnessgym.errors import ConfigError, TraceError
from harnessgym.store import TraceStore, new_id
from harnessgym.store.tables import agents, edges, events, rewards, rollouts
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.exports import atif, mas
from harnessgym.traces.exports.mas import KINDS, check
from harnessgym.traces.import_ import import_traces
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify

Json = dict[str, Any]
REQUIRED = "export" in os.environ.get("HARNESSGYM_REQUIRE", "")
needs_jsonschema = pytest.mark.skipif(
    find_spec("jsonschema") is None and not REQUIRED,
    reason="jsonschema is not installed: pip install 'harnessgym-rl[export]'",
)
EDGES = ("causal", "spawn", "message", "tool_dependency", "return", "aggregate", "safety_flow", "temporal")
CHECKS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def other(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/other.db") as store:
        yield store


def brought(store, tmp_path, document: Json, name: str):
    path = tmp_path / "document.json"
    path.write_text(json.dumps(document))
    return import_traces(store, path, name)


def traced(store, rollout_id: str) -> TracedRollout:
    return TracedRollout(store, rollout_id, Languages())


def atif_document(*steps: Json, **fields: Any) -> Json:
    numbered = [{"step_id": at, **step} for at, step in enumerate(steps, 1)]
    return {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "a", "version": "1"},
        "steps": numbered,
        **fields,
    }


CALLED = {"tool_call_id": "c1", "function_name": "find", "arguments": {"name": "lamp"}}
SEEN = {"type": "image", "source": {"media_type": "image/png", "path": "http://x/y.png"}}
RESULT = {"source_call_id": "c1", "content": "47", "subagent_trajectory_ref": [{"trajectory_id": "sub"}]}
TOKENS = {
    "prompt_tokens": 3,
    "prompt_token_ids": [1, 2, 3],
    "completion_token_ids": [4, 5],
    "logprobs": [-0.5, -0.25],
}
LOOKS = {
    "source": "agent",
    "message": "",
    "reasoning_content": "hm",
    "tool_calls": [CALLED],
    "timestamp": "2026-01-02T03:04:05Z",
    "observation": {"results": [RESULT]},
    "metrics": TOKENS,
    "model_name": "other",
}
SUB = atif_document(
    {"source": "user", "message": "part"}, {"source": "agent", "message": "done"}, trajectory_id="sub"
)
NO_LOGPROBS = {"prompt_token_ids": [1, 2, 3, 4, 5, 6], "completion_token_ids": [7]}
FOREIGN = atif_document(
    {"source": "system", "message": "Plan."},
    {"source": "user", "message": [{"type": "text", "text": "look"}, SEEN]},
    LOOKS,
    {"source": "agent", "message": "It is 47.", "metrics": NO_LOGPROBS},
    {"source": "user", "message": "thanks"},
    {
        "source": "agent",
        "message": "Bye.",
        "metrics": {"prompt_tokens": 90, "completion_tokens": 5, "cost_usd": 0.1},
    },
    session_id="s",
    notes="a note",
    subagent_trajectories=[SUB],
)


def test_a_foreign_atif_document_becomes_calls_with_its_tokens(other, tmp_path):
    made = brought(other, tmp_path, FOREIGN, "atif")
    assert made.left_out == {"notes": 1, "steps.metrics.cost_usd": 1}
    rollout = traced(other, made.rollouts[0])
    assert rollout.sampling == {"other"}
    said = rollout.transcript
    assert [exchange.answer.content for exchange in said.exchanges] == ["", "It is 47.", "Bye.", "done"]
    last = said.exchanges[2]
    roles = [message.role for message in said.conversation(last.call.id)]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert said.exchanges[0].new[1].images == ("http://x/y.png",)
    assert said.exchanges[0].answer.reasoning == "hm"
    trajectory = rollout.trajectory
    assert (trajectory.sampled, trajectory.trained) == (3, 2)
    assert [item.reason for item in trajectory.exclusions] == ["text_only"]
    assert [row.ids.tolist() for row in trajectory.rows] == [[1, 2, 3, 4, 5]]
    assert said.exchanges[1].call.parent_call_id == said.exchanges[0].call.id
    parent, child = said.agents
    assert (child.parent_agent_id, [event.target_agent_id for event in rollout.graph.of_kind("spawn")]) == (
        parent.id,
        [child.id],
    )
    assert verify(other, made.run_id).findings == ()


def test_models_that_a_document_names_are_policies_and_none_goes_on_from_anothers_tokens(other, tmp_path):
    big, small = {**LOOKS, "model_name": "big"}, {"source": "agent", "message": "47", "metrics": NO_LOGPROBS}
    sub = atif_document(
        {"source": "user", "message": "x"}, {"source": "agent", "message": "y"}, trajectory_id="sub"
    )
    sub["agent"]["model_name"] = "tiny"
    document = atif_document(
        {"source": "user", "message": "look"}, big, small, subagent_trajectories=[sub], session_id="s"
    )
    document["agent"]["model_name"] = "small"
    made = brought(other, tmp_path, document, "atif")
    rollout = traced(other, made.rollouts[0])
    said = [(rollout.policy_of(call), call.parent_call_id) for call in rollout.graph.calls.values()]
    assert sorted(said) == [("big", None), ("small", None), ("tiny", None)]
    assert rollout.facts.policy == "small"
    assert verify(other, made.run_id).findings == ()
    again = atif.document(rollout)
    assert [again["agent"]["model_name"], again["steps"][2].get("model_name")] == ["big", "small"]
    assert again["subagent_trajectories"][0]["agent"]["model_name"] == "tiny"


def test_what_was_said_of_tokens_without_ids_is_kept(other, tmp_path):
    made = brought(other, tmp_path, FOREIGN, "atif")
    metrics = atif.document(traced(other, made.rollouts[0]))["steps"][5]["metrics"]
    assert metrics == {"prompt_tokens": 90, "completion_tokens": 5}


REWARD = {"unit": "team", "target": "elsewhere", "channel": "reward", "value": 2.0, "source": "s"}


@pytest.mark.parametrize(
    ("extra", "left_out", "rewarded"),
    [
        ({"rewards": {"total": 1.0}}, {"extra.rewards": 1}, 0),
        ({"rewards": 0.5, "rollout": "r1"}, {"extra": 1, "extra.rewards": 1}, 0),
        (
            {"rewards": [1.0, {"name": "x"}, REWARD], "rollout": {"index": 3}},
            {"extra": 1, "extra.rewards": 2},
            1,
        ),
        (
            {"rollout": {"task_set": 1, "task_key": None}, "rewards": None},
            {"extra": 1, "extra.rewards": 1},
            0,
        ),
    ],
)
def test_what_others_say_in_extra_is_left_out(other, tmp_path, extra, left_out, rewarded):
    call = {"id": 5, "heard": "all", "versions": 1}
    document = atif_document({"source": "agent", "message": "x", "extra": {"call": call}}, extra=extra)
    document["agent"]["extra"] = {"harness": {"name": "h"}, "spawned": 3}
    made = brought(other, tmp_path, document, "atif")
    assert made.left_out == {**left_out, "agent.extra": 2, "steps.extra": 1}
    rollout = traced(other, made.rollouts[0])
    assert [exchange.answer.content for exchange in rollout.transcript.exchanges] == ["x"]
    assert [reward.target for reward in rollout.graph.rewards] == [group_of(other, rollout.id)] * rewarded


FOREIGN_MAS = {
    "trace_id": "t", "task_id": "sum", "system": "debate", "topology": "debate",
    "events": [
        {"id": "e1", "t": 0, "type": "orchestrator_decision", "agent": "planner", "role": "lead", "confidence_note": "high"},
        {"id": "e2", "t": 1.5, "type": "message", "agent": "planner", "from": "planner", "to": "worker", "content_ref": "h"},
        {"id": "e3", "t": 2, "type": "safety_event", "agent": "guard", "trusted": False},
    ],
    "edges": [{"src": "e1", "dst": "e2", "type": "causal"}, {"src": "e1", "dst": "e3", "type": "temporal"}],
    "rewards": {"team": 1, "process": 0.5}, "costs": {"tokens": 10, "wall_clock_s": 2}, "metrics": {"error_amplification": 1.0},
}  # fmt: skip


@needs_jsonschema
def test_a_foreign_trace_becomes_a_graph(other, tmp_path):
    made = brought(other, tmp_path, FOREIGN_MAS, "mas")
    found = traced(other, made.rollouts[0]).graph
    assert made.left_out == {"metrics": 1}
    assert [(agent.name, agent.role) for agent in found.agents] == [
        ("planner", "lead"),
        ("worker", None),
        ("guard", None),
    ]
    assert [event.kind for event in found.events] == ["orchestrator_decision", "message", "safety_event"]
    assert found.events[0].attributes == {"confidence_note": "high"}
    assert found.events[1].target_agent_id == found.agents[1].id
    assert [edge.kind for edge in found.edges] == ["causal", "temporal"]
    assert {reward.channel: reward.value for reward in found.rewards} == {"team": 1.0, "process": 0.5}
    assert {event.source for event in found.events} == {"import"}
    again = mas.document(traced(other, made.rollouts[0]))
    assert [event["type"] for event in again["events"]] == [event["type"] for event in FOREIGN_MAS["events"]]


NUMBERS = st.floats(0, 2e9, allow_nan=False).map(lambda value: round(value, 6))
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
EVENTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*KINDS, "llm_call", "refused_request"]),
        "t": NUMBERS,
        "by": st.integers(-1, 3),
        "to": st.integers(-1, 3),
        "attributes": st.dictionaries(st.sampled_from(["index", "channel", "text"]), VALUES, max_size=3)
        | st.just({"tool": "find", "content_hash": "h", "trusted": True}),
        "evidence": st.none() | TEXTS,
        "confidence": st.none() | st.floats(0, 1),
        "source": st.sampled_from(["proxy", "otlp"]),
        "span_id": st.none() | st.just("5b8efff798038103"),
    }
)
JOINS = st.tuples(
    st.sampled_from(EDGES),
    st.integers(0, 7),
    st.integers(0, 7),
    st.none() | TEXTS,
    st.none() | st.floats(0, 1),
)
REWARDS = st.dictionaries(
    st.tuples(st.sampled_from(["rollout", "team", "agent", "message"]), st.sampled_from(["reward", "task.a/b", "agent/x"])),
    st.floats(-1e9, 1e9), max_size=4,
)  # fmt: skip


def group_of(store, rollout_id: str) -> str:
    return store.read(
        lambda conn: conn.execute(select(rollouts.c.group_id).where(rollouts.c.id == rollout_id)).scalar_one()
    )


def build(recording, rollout_id: str, happened: list[Json], joins: list[Any], given: Json) -> None:
    """Write a graph as the store's tables hold it."""
    session, names = recording.session(rollout_id), [new_id() for _ in range(4)]
    calls = [
        session.call() for event in happened if event["kind"] == "llm_call" and event["source"] == "proxy"
    ]
    agent_rows = [
        {"id": name, "rollout_id": rollout_id, "name": f"agent {at % 2}", "session_id": session.id, "key": name,
         "created_at": at, "parent_agent_id": names[at - 1] if at > 1 else None, "evidence": "content",
         "role": "r" if at == 2 else None}
        for at, name in enumerate(names)
    ]  # fmt: skip
    ids = []
    rows = []
    for event in happened:
        recorded = event["kind"] == "llm_call" and event["source"] == "proxy"
        ids.append(calls.pop() if recorded else new_id())
        own = {
            name: event[name]
            for name in ("kind", "t", "attributes", "evidence", "confidence", "source", "span_id")
        }
        by, to = (None if event[name] < 0 else names[event[name]] for name in ("by", "to"))
        call_id = ids[-1] if recorded else None
        about = {
            "id": ids[-1],
            "rollout_id": rollout_id,
            "agent_id": by,
            "target_agent_id": to,
            "call_id": call_id,
            "created_at": 0.0,
        }
        rows.append({**own, **about})
    found = [
        {"id": new_id(), "rollout_id": rollout_id, "kind": kind, "source_event_id": ids[one % len(ids)],
         "target_event_id": ids[two % len(ids)], "evidence": evidence, "confidence": confidence, "created_at": 0.0}
        for kind, one, two, evidence, confidence in joins
    ]  # fmt: skip
    targets = {"rollout": rollout_id, "agent": names[0], "team": group_of(recording.store, rollout_id)}
    values = [
        {"id": new_id(), "rollout_id": rollout_id, "unit": unit, "target": targets.get(unit, ids[0]), "channel": channel,
         "value": value, "source": "s", "created_at": 0.0}
        for (unit, channel), value in given.items()
    ]  # fmt: skip
    for table, items in ((agents, agent_rows), (events, rows), (edges, found), (rewards, values)):
        if items:
            recording.store.write(lambda conn, table=table, items=items: conn.execute(insert(table), items))


def call_at(t: float) -> Json:
    return {
        "kind": "llm_call",
        "t": t,
        "by": 0,
        "to": -1,
        "attributes": {},
        "source": "proxy",
        "evidence": None,
        "confidence": None,
        "span_id": None,
    }


@needs_jsonschema
@CHECKS
@given(st.lists(EVENTS, min_size=1, max_size=8), st.lists(JOINS, max_size=8), REWARDS)
@example([call_at(1.0), call_at(2.0)], [("temporal", 0, 1, "content", 0.5)], {})
@example([call_at(1.0), call_at(2.0)], [("temporal", 0, 1, None, 0.5)], {})
@example([call_at(1.0), call_at(2.0)], [("temporal", 0, 1, "", None)], {})
@example([call_at(1.0), call_at(2.0)], [("temporal", 0, 1, None, None)], {})
def test_any_graph_comes_back(recording, other, tmp_path, happened, joins, given):
    _, (rollout_id, _) = recording.group()
    build(recording, rollout_id, happened, joins, given)
    document = mas.document(traced(recording.store, rollout_id))
    made = brought(other, tmp_path, document, "mas")
    assert made.left_out == {}
    groups = group_of(recording.store, rollout_id), group_of(other, made.rollouts[0])
    expected = json.loads(json.dumps(document).replace(*groups))
    assert mas.document(traced(other, made.rollouts[0])) == expected


IDS = st.lists(st.integers(0, 99), min_size=1, max_size=4)
TURNS = st.lists(
    st.tuples(
        TEXTS, TEXTS, TEXTS,
        st.lists(st.tuples(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=2) | TEXTS), max_size=2),
        st.none() | st.tuples(IDS, IDS),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def conversation(turns: list[Any]) -> Json:
    """A foreign document: each turn a question, an answer with tools, results."""
    steps: list[Json] = []
    for at, (question, answer, reasoning, tools, tokens) in enumerate(turns):
        steps.append({"source": "user", "message": question})
        calls = [
            {
                "tool_call_id": f"c{at}{index}",
                "function_name": f"f{name}",
                "arguments": value if isinstance(value, dict) else {},
            }
            for index, (name, value) in enumerate(tools)
        ]
        results = [{"source_call_id": call["tool_call_id"], "content": answer} for call in calls]
        step: Json = {
            "source": "agent",
            "message": answer,
            "timestamp": f"2026-01-01T00:00:0{at}+00:00",
            "llm_call_count": 1,
        }
        if tokens:
            prompt, completion = tokens
            step["metrics"] = {
                "prompt_token_ids": prompt,
                "completion_token_ids": completion,
                "logprobs": [-0.5] * len(completion),
            }
        optional = {
            "reasoning_content": reasoning,
            "tool_calls": calls,
            "observation": {"results": results} if results else None,
        }
        steps.append(step | {name: value for name, value in optional.items() if value})
    return atif_document(*steps)


@CHECKS
@given(TURNS)
def test_any_conversation_comes_back(recording, other, tmp_path, turns):
    made = brought(recording.store, tmp_path, conversation(turns), "atif")
    document = atif.document(traced(recording.store, made.rollouts[0]))
    assert [step["message"] for step in document["steps"]] == [text for turn in turns for text in turn[:2]]
    again = brought(other, tmp_path, document, "atif")
    assert again.left_out == {}
    assert atif.document(traced(other, again.rollouts[0])) == document
    before, after = (
        store.read(lambda conn: rows_of(conn, made.rollouts[0], group_id=""))
        for store in (recording.store, other)
    )
    assert (before.sampled, before.trained) == (after.sampled, after.trained)


@needs_jsonschema
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"events": []}, r"\$\.events"),
        ({"extra": 1}, "extra"),
        ({"edges": [{"src": "e1", "dst": "gone", "type": "causal"}]}, "'gone', which does not exist"),
        ({"events": [FOREIGN_MAS["events"][0]] * 2, "edges": []}, "'e1' occurs 2 times"),
        ({"events": [{"id": "e", "t": -1, "type": "message", "agent": "a"}], "edges": []}, "-1"),
        ({"events": [{"id": "e", "t": 1, "type": "llm_call", "agent": "a"}], "edges": []}, "llm_call"),
        ({"costs": {"tokens": 1}}, "wall_clock_s"),
        ({"costs": {"tokens": -1, "wall_clock_s": 1}}, "-1"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named(change, why):
    with pytest.raises(TraceError, match=why):
        check({**FOREIGN_MAS, **change})


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (atif_document(), "steps"),
        (atif_document({"source": "user", "message": "x"}, surplus=1), "surplus"),
        (atif_document({"source": "user", "message": "x", "reasoning_content": "y"}), "reasoning_content"),
        (atif_document({"source": "agent", "message": "x", "llm_call_count": 0, "metrics": {}}), "metrics"),
        (
            atif_document(
                {"source": "agent", "message": "x", "observation": {"results": [{"source_call_id": "c"}]}}
            ),
            "'c'",
        ),
        (
            {**atif_document({"source": "user", "message": "x"}), "schema_version": "ATIF-v9"},
            "schema_version",
        ),
        (
            atif_document(
                {"source": "agent", "message": "x", "metrics": {"completion_token_ids": [1], "logprobs": []}}
            ),
            "0 logprobs",
        ),
    ],
)
def test_what_is_wrong_with_a_trajectory_is_named(other, tmp_path, document, why):
    with pytest.raises(TraceError, match=why):
        brought(other, tmp_path, document, "atif")


def test_lines_before_a_wrong_one_stay(other, tmp_path):
    good = json.dumps(atif_document({"source": "agent", "message": "x"}))
    (tmp_path / "two.jsonl").write_text(f"{good}\n{{\n")
    with pytest.raises(TraceError, match="line 2"):
        import_traces(other, tmp_path / "two.jsonl", "atif")
    assert len(other.read(lambda conn: conn.execute(select(rollouts.c.id)).all())) == 1
    with pytest.raises(ConfigError, match="no import named 'csv'"):
        import_traces(other, tmp_path / "two.jsonl", "csv")
    with pytest.raises(TraceError, match="nothing to import"):
        import_traces(other, tmp_path / "gone.json", "atif")


def test_a_folder_of_documents_is_one_run(other, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.json").write_text(json.dumps(atif_document({"source": "agent", "message": name})))
    made = import_traces(other, folder, "atif")
    assert len(made.rollouts) == 2
    done = export(other, made.rollouts, "sft", tmp_path / "sft.jsonl")
    assert (done.rollouts, done.records) == (2, 2)
