"""Exports for trainers, over recordings of several branches: field names, shapes, and that nothing is lost
or invented.
"""

import dataclasses
import json
import os
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import insert, update

from harnessgym.errors import ConfigError, StoreError, TraceError
from harnessgym.outcome.failure import StopReason
from harnessgym.registry import names
from harnessgym.routed_experts import RoutedExperts
from harnessgym.store import new_id, rollouts
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import advantages, policy_versions, trained
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.exports.areal import arrays
from harnessgym.traces.exports.trl import samples
from harnessgym.traces.exports.verl import outputs

REQUIRED = "export" in os.environ.get("HARNESSGYM_REQUIRE", "")
needs_pyarrow = pytest.mark.skipif(
    find_spec("pyarrow") is None and not REQUIRED,
    reason="pyarrow is not installed: pip install 'harnessgym-rl[export]'",
)


@pytest.fixture
def rollout_ids(recording) -> list[str]:
    """Two rollouts, each with a branch that forks after its first turn, a second version, and a side call."""
    for version in range(2):
        recording.publish(version)
    _, found = recording.group()
    for rollout_id in found:
        session = recording.session(rollout_id)
        first = session.call()
        session.call(3, after=first, versions=(0, 0, 1))
        session.call(4, after=first, versions=(1, 1))
        session.call(2, kind="side")
        session.seal()
    recording.finish(found)
    return found


def traced(recording, rollout_id: str) -> TracedRollout:
    return TracedRollout(recording.store, rollout_id, Languages())


def train(recording, rollout_id: str, value: float) -> None:
    """Write what a trainer writes: an advantage for every sampled token."""
    step = {
        "id": new_id(),
        "rollout_id": rollout_id,
        "policy_id": recording.policy_id,
        "step": 1,
        "version": 1,
    }
    found = [
        call.completion_segment
        for call in traced(recording, rollout_id).graph.calls.values()
        if call.kind == "policy"
    ]
    ranges = [
        {"id": new_id(), "trained_id": step["id"], "segment_id": name, "start": 0, "end": 2, "value": value}
        for name in found
    ]
    values = {**step, "tokens": 9, "max_staleness": 0, "created_at": 0.0}
    recording.store.write(lambda conn: conn.execute(insert(trained).values(values)))
    recording.store.write(lambda conn: conn.execute(insert(advantages), ranges))


def test_verl_outputs_split_at_the_first_trained_token(recording, rollout_ids):
    rollout = traced(recording, rollout_ids[0])
    found = list(outputs(rollout))
    assert len(found) == len(rollout.trajectory.rows) == 2
    for output, row in zip(found, rollout.trajectory.rows, strict=True):
        assert output["prompt_ids"] + output["response_ids"] == row.ids.tolist()
        assert output["response_mask"][0] == 1
        assert not row.mask[: len(output["prompt_ids"])].any()
        lengths = {len(output[name]) for name in ("response_ids", "response_mask", "response_logprobs")}
        assert lengths == {len(output["extra_fields"]["response_versions"])}
        assert output["reward_score"] == 1.0
        assert output["num_turns"] == 4
    of_tokens = {
        "prompt_ids",
        "response_ids",
        "response_mask",
        "response_logprobs",
        "routed_experts",
        "multi_modal_data",
    }
    assert set(found[0]) == of_tokens | {"reward_score", "num_turns", "metrics", "extra_fields"}


def test_areal_arrays_have_a_batch_of_one_in_front(recording, rollout_ids):
    rollout = traced(recording, rollout_ids[0])
    for found, row in zip(arrays(rollout), rollout.trajectory.rows, strict=True):
        length = len(row.ids)
        shapes = {name: (array.shape, array.dtype.name) for name, array in found.items()}
        assert shapes == {
            "input_ids": ((1, length), "int64"),
            "loss_mask": ((1, length), "int64"),
            "logprobs": ((1, length), "float32"),
            "versions": ((1, length), "int64"),
            "attention_mask": ((1, length), "bool"),
            "rewards": ((1,), "float32"),
        }
        assert (found["versions"][0][row.mask == 0] == -1).all()
        assert found["logprobs"][0].tolist() == row.logprobs.tolist()


def test_trl_samples_have_one_advantage_and_the_oldest_version(recording, rollout_ids):
    found = list(samples(traced(recording, rollout_ids[0])))
    assert [item["model_version"] for item in found] == [0, 1]
    assert {item["advantage"] for item in found} == {0.0}  # both of the group have reward 1
    assert found[0]["group_id"] == next(samples(traced(recording, rollout_ids[1])))["group_id"]
    for item in found:
        assert item["input_ids"].shape == item["completion_mask"].shape == item["old_log_probs"].shape
        assert (item["old_log_probs"][item["completion_mask"] == 0] == 0).all()
    train(recording, rollout_ids[0], 3.0)
    first, second = samples(traced(recording, rollout_ids[0]))
    assert first["advantage"] == pytest.approx(3.0 * 4 / 7)  # two of four and two of three tokens
    assert second["advantage"] == 3.0


def test_trl_samples_of_a_rollout_without_reward_and_advantage_are_refused(recording):
    _, (rollout_id, other) = recording.group()
    recording.publish(0)
    recording.session(rollout_id).call()
    for name in (rollout_id, other):
        outcome = RolloutOutcome(name, StopReason.FINISHED, "valid", source="none")
        recording.store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))
    rollout = traced(recording, rollout_id)
    with pytest.raises(TraceError, match=f"Rollout {rollout_id} was not trained and has no reward"):
        list(samples(rollout))
    with pytest.raises(TraceError, match=f"Rollout {rollout_id} has no reward"):
        list(arrays(rollout))


def test_advantages_of_a_step_that_was_undone_do_not_count(recording, rollout_ids):
    train(recording, rollout_ids[0], 3.0)
    assert traced(recording, rollout_ids[0]).advantages
    undone = update(policy_versions).where(policy_versions.c.version == 1).values(orphaned=True)
    recording.store.write(lambda conn: conn.execute(undone))
    assert traced(recording, rollout_ids[0]).advantages == {}


def test_rows_for_areal_need_a_reward(recording, tmp_path):
    _, (unrewarded, _) = recording.group()
    recording.session(unrewarded).call()
    with pytest.raises(TraceError, match="no reward"):
        export(recording.store, [unrewarded], "areal", tmp_path / "rows.jsonl")


@pytest.mark.skipif(
    find_spec("trl") is None and "trl" not in os.environ.get("HARNESSGYM_REQUIRE", ""), reason="needs trl"
)
def test_trl_takes_the_samples(recording, rollout_ids):
    rollout_sample = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker").RolloutSample
    for item in samples(traced(recording, rollout_ids[0])):
        made = rollout_sample(**item)
        wanted = {
            field.name for field in dataclasses.fields(rollout_sample) if field.default is dataclasses.MISSING
        }
        assert wanted == set(item)
        assert made.input_ids.dtype == np.int64


@needs_pyarrow
def test_parquet_has_every_token_and_every_exclusion(recording, rollout_ids, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    train(recording, rollout_ids[0], 0.5)
    done = export(recording.store, rollout_ids, "parquet", tmp_path / "rows.parquet")
    found = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    rows = [row for name in rollout_ids for row in traced(recording, name).trajectory.rows]
    assert (done.rollouts, done.records) == (2, len(rows)) == (2, len(found))
    for row, stored in zip(rows, found, strict=True):
        for name in ("ids", "mask", "logprobs", "versions"):
            assert stored[name] == getattr(row, name).tolist()
        assert [turn["call_id"] for turn in stored["turns"]] == [turn.call_id for turn in row.turns]
    assert sum(sum(stored["mask"]) for stored in found) == 2 * 9
    excluded = [item for stored in found for item in stored["excluded"]]
    assert [(item["end"], item["reason"]) for item in excluded] == [(4, "side_call")] * 2
    assert {value for value in found[0]["advantages"] if value} == {0.5}
    assert found[-1]["advantages"] is None
    assert found[0]["rewards"] == [
        {"unit": "rollout", "target": rollout_ids[0], "channel": "reward", "value": 1.0}
    ]


@needs_pyarrow
def test_a_dataset_folder_is_what_datasets_loads(recording, rollout_ids, tmp_path):
    folder = tmp_path / "dataset"
    export(recording.store, rollout_ids, "datasets", folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == [
        "README.md",
        "data/train-00000.parquet",
    ]
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"]
    assert len(found) == 4
    assert found[0]["ids"] == traced(recording, rollout_ids[0]).trajectory.rows[0].ids.tolist()


@pytest.mark.parametrize("name", ["verl", "areal", "trl"])
def test_lines_are_what_the_functions_give(recording, rollout_ids, tmp_path, name):
    done = export(recording.store, rollout_ids, name, tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (done.rollouts, done.records, len(lines)) == (2, 4, 4)
    ids = [row.ids.tolist() for name in rollout_ids for row in traced(recording, name).trajectory.rows]
    read = {
        "verl": lambda line: line["prompt_ids"] + line["response_ids"],
        "areal": lambda line: line["input_ids"][0],
    }
    assert [read.get(name, lambda line: line["input_ids"])(line) for line in lines] == ids


def test_sft_refuses_what_is_not_known(recording, rollout_ids, tmp_path):
    with pytest.raises(TraceError, match="tokenizer"):
        export(recording.store, rollout_ids, "sft", tmp_path / "sft.jsonl")
    assert list(tmp_path.glob("*sft*")) == []


def test_what_cannot_be_written_leaves_what_was_there(recording, rollout_ids, tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text("kept")
    with pytest.raises(StoreError, match="nothing"):
        export(recording.store, [rollout_ids[0], "nothing"], "verl", out)
    assert out.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_paths_that_a_format_cannot_use_are_refused(recording, rollout_ids, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    refused = [
        ("verl", tmp_path / "full", "is a folder"),
        ("parquet", tmp_path / "full", "is a folder"),
        ("atif", tmp_path / "full", "not empty"),
        ("datasets", tmp_path / "full" / "file", "is a file"),
        ("atif", tmp_path / "two.json", "one rollout"),
    ]
    for name, out, why in refused:
        with pytest.raises(ConfigError, match=why):
            export(recording.store, rollout_ids, name, out)
    assert (tmp_path / "full" / "file").read_text() == "kept"
    assert not (tmp_path / "two.json").exists()


def test_an_unknown_format_lists_the_known_ones(recording, tmp_path):
    with pytest.raises(ConfigError, match="no export named 'parket'"):
        export(recording.store, [], "parket", tmp_path / "x")
    assert {"parquet", "datasets", "trl", "verl", "areal", "atif", "mas", "otel", "sft"} <= set(
        names("export")
    )


@pytest.mark.parametrize(("name", "out"), [("atif", "docs"), ("atif", "docs.jsonl"), ("otel", "spans.jsonl")])
def test_documents_of_several_rollouts(recording, rollout_ids, tmp_path, name, out):
    done = export(recording.store, rollout_ids, name, tmp_path / out)
    assert (done.rollouts, done.records) == (2, 2)
    if (tmp_path / out).is_dir():
        assert sorted(path.stem for path in (tmp_path / out).iterdir()) == sorted(rollout_ids)


def test_memory_does_not_grow_with_the_number_of_rollouts(recording, tmp_path):
    _, (rollout_id, _) = recording.group()
    session = recording.session(rollout_id)
    after = None
    for _ in range(10):
        after = session.call(2_000, after=after, versions=(0,) * 1_000)
    peaks = []
    for times in (2, 20):
        tracemalloc.start()
        export(recording.store, [rollout_id] * times, "verl", Path(tmp_path / "rows.jsonl"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.fixture
def routed(recording) -> str:
    """A rollout with a row whose tokens all have experts, but for the last, and one with a gap."""
    recording.publish(0)
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    experts = np.arange(24, dtype=np.uint16).reshape(6, 2, 2) + 300
    session.call(3, experts=RoutedExperts(0, experts))
    session.call(4, experts=RoutedExperts(2, experts[:5]))
    session.call(5)
    session.seal()
    recording.finish([rollout_id])
    return rollout_id


def test_verl_gets_the_experts_of_rows_that_have_them_all(recording, routed, tmp_path):
    export(recording.store, [routed], "verl", tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    experts = [np.asarray(line["routed_experts"]) for line in lines]
    assert experts[0].shape == (3 + 4 - 1, 2, 2)
    assert experts[0].flatten().tolist() == list(range(300, 324))
    assert [line["routed_experts"] for line in lines[1:]] == [None, None]


@needs_pyarrow
def test_parquet_has_the_experts_of_each_token_that_has_them(recording, routed, tmp_path):
    from pyarrow.parquet import read_table

    export(recording.store, [routed], "parquet", tmp_path / "rows.parquet")
    first, second, third = read_table(tmp_path / "rows.parquet").to_pylist()
    assert first["routed_experts"] == [*np.arange(300, 324).reshape(6, 4).tolist(), None]
    assert first["routed_layers"] == 2
    assert second["routed_experts"] == [None, None, *np.arange(300, 320).reshape(5, 4).tolist(), None]
    assert (third["routed_experts"], third["routed_layers"]) == (None, None)
