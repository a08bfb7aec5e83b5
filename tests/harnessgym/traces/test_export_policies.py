"""Exports of rollouts that several policies sampled: no token is lost, none is in another policy's file."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from harnessgym.errors import ConfigError
from harnessgym.store import new_id, policies
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import trained
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.exports import mas, otel
from harnessgym.traces.exports.row_facts import advantages_of

Json = dict[str, Any]
VERSIONS = {"policy": 3, "helper": 13}
CHECKS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.sampled_from(sorted(VERSIONS))


def register(recording) -> dict[str, str]:
    """Both policies and what they have published; their ids by name."""
    ids = {
        name: recording.store.write(lambda conn, name=name: policies.register(conn, recording.run_id, name))
        for name in VERSIONS
    }
    for name, version in VERSIONS.items():
        row = PolicyVersion(version, None, "full", "", 0, "", 0, committed=True, orphaned=False)
        recording.store.write(lambda conn, name=name, row=row: policies.publish(conn, ids[name], row))
    return ids


def record(recording, turns) -> str:
    """A rollout in which policies take turns: each goes on from its latest answer, or begins a branch, or
    is a side call.
    """
    ids = register(recording)
    _, (rollout_id,) = recording.group(1)
    session, latest = recording.session(rollout_id), dict[str, str]()
    for name, kind in turns:
        after = latest.get(name) if kind == "on" else None
        versions = (VERSIONS[name],) * 3
        made = session.call(
            4,
            after=after,
            versions=versions,
            policy_id=ids[name],
            kind="side" if kind == "side" else "policy",
        )
        if kind != "side":
            latest[name] = made
    session.seal()
    recording.finish([rollout_id])
    return rollout_id


BOTH = (
    ("policy", "new"),
    ("helper", "new"),
    ("policy", "on"),
    ("helper", "side"),
    ("helper", "on"),
    ("helper", "new"),
)


@pytest.fixture
def both(recording) -> str:
    return record(recording, BOTH)


def traced(recording, rollout_id: str, sampled_by: str | None = None) -> TracedRollout:
    return TracedRollout(recording.store, rollout_id, Languages(), sampled_by)


@CHECKS
@given(
    turns=st.lists(st.tuples(NAMES, st.sampled_from(("on", "new", "side"))), min_size=1, max_size=9),
    number=st.just(count()),
)
def test_the_files_of_all_policies_together_have_every_row_once_and_no_foreign_token(
    recording, tmp_path, turns, number
):
    rollout_id, found = record(recording, turns), list[Json]()
    for name, version in VERSIONS.items():
        out = tmp_path / f"{next(number)}.jsonl"
        export(recording.store, [rollout_id], "areal", out, sampled_by=name)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        for row in rows:
            assert {
                each for each, mask in zip(row["versions"][0], row["loss_mask"][0], strict=True) if mask
            } == {version}
        assert sum(sum(row["loss_mask"][0]) for row in rows) == 3 * sum(
            one == name and kind != "side" for one, kind in turns
        )
        found += rows
    everything = traced(recording, rollout_id).trajectory
    assert sorted(row["input_ids"][0] for row in found) == sorted(row.ids.tolist() for row in everything.rows)
    assert (
        sum(traced(recording, rollout_id, name).trajectory.sampled for name in VERSIONS) == everything.sampled
    )


@pytest.mark.parametrize("name", ["areal", "trl", "verl", "sft"])
def test_a_format_without_a_place_for_the_policy_must_be_told_which(recording, both, tmp_path, name):
    with pytest.raises(ConfigError, match=r"'helper', 'policy'.*--sampled-by NAME.*parquet"):
        export(recording.store, [both], name, tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match=r"no policy 'helpr'. It has 'helper', 'policy'"):
        export(recording.store, [both], name, tmp_path / "rows.jsonl", sampled_by="helpr")
    assert not list(tmp_path.glob("*.jsonl"))


def test_rollouts_of_one_run_that_one_policy_each_sampled_are_told_apart_too(recording, tmp_path):
    one, other = record(recording, [("policy", "new")]), record(recording, [("helper", "new")])
    assert export(recording.store, [one, one], "verl", tmp_path / "rows.jsonl").records == 2
    with pytest.raises(ConfigError, match="Several policies"):
        export(recording.store, [one, other], "verl", tmp_path / "more.jsonl")
    done = export(recording.store, [one, other], "verl", tmp_path / "rows.jsonl", sampled_by="helper")
    assert (done.rollouts, done.records) == (2, 1)
    assert json.loads((tmp_path / "rows.jsonl").read_text())["extra_fields"]["policy"] == "helper"


def test_parquet_names_the_policy_of_every_row_and_excludes_once(recording, both, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    export(recording.store, [both], "parquet", tmp_path / "rows.parquet")
    found = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert sorted(row["policy"] for row in found) == ["helper", "helper", "policy"]
    for row in found:
        assert {version for version, mask in zip(row["versions"], row["mask"], strict=True) if mask} == {
            VERSIONS[row["policy"]]
        }
    excluded = [(row["policy"], item["reason"]) for row in found for item in row["excluded"]]
    assert excluded == [("helper", "side_call")]
    export(recording.store, [both], "parquet", tmp_path / "one.parquet", sampled_by="policy")
    assert [row["policy"] for row in pq.read_table(tmp_path / "one.parquet").to_pylist()] == ["policy"]


def test_what_one_policy_was_trained_on_says_nothing_of_another(recording, both):
    step = {
        "id": new_id(),
        "rollout_id": both,
        "policy_id": register(recording)["helper"],
        "step": 1,
        "version": 13,
    }
    values = {**step, "tokens": 9, "max_staleness": 0, "created_at": 0.0}
    recording.store.write(lambda conn: conn.execute(insert(trained).values(values)))
    rollout = traced(recording, both)
    told = {rollout.policies[row.policy_id]: advantages_of(rollout, row) for row in rollout.trajectory.rows}
    assert told["policy"] is None
    assert told["helper"] is not None


@pytest.mark.parametrize("name", ["atif", "mas", "otel"])
def test_whole_rollouts_are_not_cut(recording, both, tmp_path, name):
    with pytest.raises(ConfigError, match="names the policy of every call"):
        export(recording.store, [both], name, tmp_path / "out.jsonl", sampled_by="helper")


def test_documents_name_the_policy_of_every_call(recording, both):
    wanted = [name for name, _ in BOTH]
    spans = otel.request(traced(recording, both))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    models = {
        item["key"]: item["value"]
        for span in spans
        for item in span["attributes"]
        if span["name"].startswith("chat ")
    }
    assert [span["name"] for span in spans if span["name"].startswith("chat ")] == [
        f"chat {name}" for name in wanted
    ]
    assert models["gen_ai.request.model"] == {"stringValue": wanted[-1]}
    pytest.importorskip("jsonschema")
    events = mas.document(traced(recording, both))["events"]
    assert [event["x_token_ref"]["policy"] for event in events if "x_token_ref" in event] == wanted


def test_folders_are_given_by_policy():
    given_folders = Languages.of(["helper=/models/h", "/models/first"])
    assert (given_folders.folder, given_folders.folders) == (
        Path("/models/first"),
        {"helper": Path("/models/h")},
    )
    assert Languages.of(["./a=b"]).folder == Path("./a=b")
    with pytest.raises(ConfigError, match="Two folders are given for the policy 'helper'"):
        Languages.of(["helper=/a", "helper=/b"])
