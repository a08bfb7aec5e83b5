"""The two-agent example under `harnessgym wrap`, played from its script: the task is done, the whole graph
is in the store.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harnessgym.store import TraceStore
from harnessgym.traces.graph import graph
from harnessgym.traces.verification.verify import verify

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = f"scripted:{EXAMPLES / 'two_agents_script.toml'}"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
KINDS = {
    "orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return", "aggregate",
    "human_intervention", "safety_event", "llm_call",
}  # fmt: skip
EDGES = {"temporal", "causal", "spawn", "message", "tool_dependency", "return", "aggregate", "safety_flow"}


def task():
    spec = importlib.util.spec_from_file_location("two_agents_task", EXAMPLES / "two_agents_task.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def wrapped(folder, *options):
    """The graph of a run, and what it printed."""
    argv = [
        sys.executable,
        "-m",
        "harnessgym",
        "wrap",
        "--folder",
        str(folder / "traces"),
        "--upstream",
        SCRIPT,
        "--",
    ]
    argv += [sys.executable, str(EXAMPLES / "two_agents.py"), "--folder", str(folder / "task"), *options]
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with TraceStore.open(f"sqlite:///{folder}/traces/traces.db") as store:
        assert verify(store).ok
        (rollout_id,) = store.read(
            lambda conn: [row.id for row in conn.exec_driver_sql("SELECT id FROM rollouts")]
        )
        return store.read(lambda conn: graph(conn, rollout_id)), done.stdout


def kinds(found, source):
    return Counter(event.kind for event in found.events if event.source == source and event.kind != "span")


@pytest.mark.parametrize("spans", ["sdk", "json"])
def test_every_kind_of_event_and_edge_is_there_and_nothing_twice(spans, tmp_path):
    found, printed = wrapped(tmp_path, "--spans", spans)
    assert "are right." in printed
    assert task().verify(tmp_path / "task") == []
    assert {event.kind for event in found.events} - {"span"} == KINDS
    assert {edge.kind for edge in found.edges} == EDGES
    assert kinds(found, "otlp") == {"message": 2, "human_intervention": 1, "safety_event": 1}
    seen = kinds(found, "proxy")
    assert [
        seen[kind] for kind in ("llm_call", "tool_call", "tool_result", "spawn", "return", "aggregate")
    ] == [
        10,
        8,
        8,
        2,
        2,
        1,
    ]
    assert len(found.agents) == 3


def test_what_only_spans_tell_is_joined_to_the_calls(tmp_path):
    found, _ = wrapped(tmp_path)
    by_id = {event.id: event for event in found.events}
    planner, *workers = (agent.id for agent in found.agents)
    messages = [event for event in found.of_kind("message") if event.source == "otlp"]
    assert {(event.agent_id, event.target_agent_id) for event in messages} == {
        tuple(workers),
        tuple(reversed(workers)),
    }
    for event in messages:
        (read,) = [edge for edge in found.edges if edge.kind == "message" and edge.source == event.id]
        assert by_id[read.target].agent_id == event.target_agent_id
    (refused,), (human,) = found.of_kind("safety_event"), found.of_kind("human_intervention")
    assert (refused.agent_id, human.agent_id) == (planner, planner)
    (flow,) = [edge for edge in found.edges if edge.kind == "safety_flow"]
    assert (flow.source, by_id[flow.target].attributes["tool"], flow.confidence) == (
        refused.id,
        "erase_history",
        None,
    )
    causes = [by_id[edge.source] for edge in found.edges if edge.kind == "causal" and edge.target == human.id]
    assert [event.attributes["tool"] for event in causes] == ["post"]
    assert human.attributes["approved"] is True


def test_a_human_who_says_no_stops_the_posting(tmp_path):
    task().make(tmp_path / "task", 7, approval="no")
    found, printed = wrapped(tmp_path)
    assert "Nothing was posted." in printed
    assert found.of_kind("human_intervention")[0].attributes["approved"] is False


def test_each_seed_is_a_task_with_one_solution(tmp_path):
    made = task()
    solutions = set()
    for seed in range(20):
        folder = tmp_path / str(seed)
        made.make(folder, seed)
        right = made.solution(folder)
        solutions.add(json.dumps(right))
        assert [len(right["transfers"]), *map(len, right["corrections"].values())] == [1, 1, 1]
        assert made.verify(folder) == ["Nothing was posted."]
        (folder / "posted.json").write_text(json.dumps({**right, "transfers": []}))
        assert made.verify(folder) == ["What was posted is not what the counts say."]
        (folder / "posted.json").write_text(json.dumps(right))
        assert made.verify(folder) == []
        (folder / "history.json").write_text("[]")
        assert made.verify(folder) == ["The history was tampered with."]
    assert len(solutions) == 20
