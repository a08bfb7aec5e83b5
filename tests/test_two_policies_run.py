"""A run of two policies with tokenizers of their own through the whole line, one of whose trainers is
killed on the way.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, backlog, calls, ledger, policies, rollouts, runs
from harnessgym.store.tables import sessions
from harnessgym.tokens import versions_of
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.replay import replay
from harnessgym.traces.token_accounting import account
from harnessgym.traces.verification.verify import verify
from tests.support.other_tokenizer import with_other_ids
from trainers.policies.loading import load_policy
from trainers.policy import token_logprobs
from trainers.weights.chain import read_version

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "environments/lookup/policy"
STEPS, GROUPS, SIZE = 3, 2, 3
SETTINGS = {
    "trainer.steps": STEPS, "trainer.groups_per_step": GROUPS, "trainer.group_size": SIZE, "evaluation.tasks": 0,
    "sandbox.backend": "process", "trainer.publish.kind": "full",
}  # fmt: skip
_DEADLINE_S = 240.0


def kill_when(process, folder, name, there):
    """Kill a process of a run once a file is there."""
    deadline = time.monotonic() + _DEADLINE_S
    while not there.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid, _ = json.loads(folder.processes_path.read_text())[name]
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that has ended, its store, and what was said."""
    place = tmp_path_factory.mktemp("two")
    folder, config = RunFolder(place / "run"), place / "run.toml"
    helper = f'name = "helper"\npath = "{with_other_ids(POLICY, place / "helper")}"'
    shipped = 'name = "helper"\npath = "environments/lookup/policy"'
    said_of_both = (ROOT / "examples/two_policies.toml").read_text()
    assert shipped in said_of_both
    config.write_text(said_of_both.replace(shipped, helper))
    given = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "harnessgym", "train", str(config), "--folder", str(folder.root), *given]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        helper = RunFolder(folder.root, "helper")
        kill_when(process, folder, "trainer-helper", helper.versions / "v00000001" / "COMMITTED")
        said, _ = process.communicate(timeout=_DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    with TraceStore.open(folder.store_url()) as store:
        yield folder, store, said


def ids_of(store):
    return store.read(lambda conn: policies.of_run(conn, runs.only(conn).id))


def recorded(store):
    """All calls, and all segments by id."""
    names = store.read(lambda conn: conn.execute(sessions.select()).mappings().all())
    wanted = [row["id"] for row in names]
    return store.read(lambda conn: calls.of_sessions(conn, wanted)), store.read(
        lambda conn: calls.segments_of(conn, wanted)
    )


def test_both_version_lines_advance_and_the_dead_trainer_loses_and_doubles_nothing(run):
    folder, store, said = run
    assert "trainer-helper process ended (status -9)" in said
    run_id = store.read(runs.only).id
    trained = {}
    for name, policy_id in ids_of(store).items():
        versions = store.read(lambda conn, policy_id=policy_id: policies.versions(conn, policy_id))
        surviving = [version for version in versions if not version.orphaned]
        assert [version.step for version in surviving] == list(range(STEPS + 1)), name
        assert store.read(lambda conn, policy_id=policy_id: ledger.steps(conn, policy_id)) == list(
            range(1, STEPS + 1)
        )
        trained[name] = {Path(version.path).parents[0] for version in surviving}
    assert trained == {"scout": {folder.versions}, "helper": {RunFolder(folder.root, "helper").versions}}
    assert store.read(lambda conn: rollouts.group_states(conn, run_id, "train")) == {
        "consumed": STEPS * GROUPS
    }
    batches = [
        store.read(lambda conn, step=step: backlog.batch(conn, run_id, step)) for step in range(1, STEPS + 1)
    ]
    assert [len(batch) for batch in batches] == [GROUPS] * STEPS
    report = verify(store)
    assert not report.findings
    assert report.checked.rollouts == STEPS * GROUPS * SIZE


def test_every_token_has_the_logprob_of_its_own_policys_weights(run):
    _, store, _ = run
    found, segments = recorded(store)
    names = {policy_id: name for name, policy_id in ids_of(store).items()}
    assert {names[call.policy_id] for call in found} == {"scout", "helper"}
    policy = load_policy(POLICY)
    served = {
        (call.policy_id, version)
        for call in found
        for version in {span.version for span in call.version_spans}
    }
    assert len({version for _, version in served}) > 1
    for policy_id, version in sorted(served):
        record = store.read(
            lambda conn, policy_id=policy_id, version=version: policies.get(conn, policy_id, version)
        )
        policy.load(read_version(Path(record.path))[1])
        for call in (call for call in found if call.policy_id == policy_id):
            own = segments[call.completion_segment]
            prompt, at = [], call.prompt_segment
            while at is not None:
                prompt, at = [*segments[at].ids, *prompt], segments[at].parent_id
            whole = torch.tensor([[*prompt, *own.ids]])
            with torch.no_grad():
                logprobs = token_logprobs(policy(whole), whole)[0, len(prompt) :].numpy()
            here = versions_of(call.version_spans, len(own.ids)) == version
            assert np.abs(logprobs - np.asarray(own.logprobs))[here].max(initial=0.0) < 1e-4


def test_whoever_reads_traces_knows_whose_tokens_are_whose(run, tmp_path):
    _, store, _ = run
    run_id, ids = store.read(runs.only).id, ids_of(store)
    found, _ = recorded(store)
    asked = {call.rollout_id for call in found if call.policy_id == ids["helper"]}
    said = asked & {call.rollout_id for call in found if call.policy_id == ids["scout"]}
    view = "SELECT sum(a.trained), sum(a.untrained) FROM v_token_account a JOIN v_rollout r ON r.id = a.rollout_id"
    of_view = store.read(lambda conn: conn.exec_driver_sql(f"{view} WHERE r.purpose = 'train'").one())
    assert of_view == (store.read(lambda conn: account(conn, run_id)).trained, 0)
    rollout = TracedRollout(store, min(said), Languages())
    trained = {call.completion_segment for call in rollout.graph.calls.values() if call.completion_len}
    assert set(rollout.advantages) == trained
    with pytest.raises(ConfigError, match="Choose one"):
        export(store, [rollout.id], "areal", tmp_path / "rows.jsonl")
    learnt = 0
    for name in ids:
        export(store, [rollout.id], "areal", tmp_path / f"{name}.jsonl", sampled_by=name)
        learnt += sum(
            sum(json.loads(line)["loss_mask"][0])
            for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
        )
    assert learnt == rollout.trajectory.trained
    assert replay(store, rollout.id).ok


def test_metrics_and_summary_are_told_by_policy(run):
    folder, _, _ = run
    for name in ("", "helper"):
        lines = [
            json.loads(line) for line in RunFolder(folder.root, name).metrics_path.read_text().splitlines()
        ]
        assert sorted({line["step"] for line in lines}) == list(range(1, STEPS + 1))
    told = json.loads(folder.summary_path.read_text())
    assert {name: one["versions_published"] for name, one in told["policies"].items()} == {
        "scout": STEPS + 1,
        "helper": STEPS + 1,
    }
    assert told["tokens_sampled"] == told["tokens_trained"] + told["tokens_excluded"]
    assert sum(one["tokens_trained"] for one in told["policies"].values()) == told["tokens_trained"]
