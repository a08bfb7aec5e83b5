"""Runs that train on a sum of rewards, from the run file to the gradient's signs."""

import json
import os
import re
from pathlib import Path

from sqlalchemy import text

from harnessgym.store import TraceStore
from harnessgym.supervisor.progress import read_metrics
from tests.test_bad_input_runs import Run, make_run  # noqa: F401

HERE = "tests.test_weighted_rewards"
PENALTY = 0.01


def sampled(record):
    """Tokens that the policy sampled."""
    return float(sum(call.completion_len or 0 for call in record.graph.calls.values()))


def fails_twice(record):
    """The same, after it has failed for two rollouts."""
    folder = Path(record.store.url.removeprefix("sqlite:///")).parent
    for name in ("first", "second"):
        try:
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        raise ValueError("the word list is not there yet")
    return sampled(record)


def rewards(function, **more):
    settings = {"function": f"{HERE}:{function}", "channel": "cost.sampled"}
    return [{"name": "short", "type": "code", "settings": settings, "weight": -PENALTY, **more}]


def rows(run, sql):
    with TraceStore.open(run.paths().store_url()) as store:
        return store.read(lambda conn: [tuple(row) for row in conn.execute(text(sql))])


TOTALS = """SELECT r.group_id, r.id, g.value, t.value, l.value, (SELECT sum(c.completion_len) FROM calls c
WHERE c.rollout_id = r.id) FROM rollouts r JOIN rewards g ON g.rollout_id = r.id AND g.channel = 'reward'
JOIN rewards t ON t.rollout_id = r.id AND t.channel = 'total'
JOIN rewards l ON l.rollout_id = r.id AND l.channel = 'cost.sampled'"""
SIGNS = """SELECT t.rollout_id, a.value FROM advantages a JOIN trained t ON t.id = a.trained_id"""


def test_a_penalty_is_trained_on_where_every_grade_is_the_same(make_run):  # noqa: F811
    run = make_run(
        "good", rewards=rewards("fails_twice"), sampling={"max_tokens": 24}, evaluation={"tasks": 3}
    )
    shown = run.end()
    found = rows(run, TOTALS)
    assert len(found) >= 2 * 2 * 4 + 4 * 3
    for _, _, graded, total, length, tokens in found:
        assert (graded, length) == (1.0, tokens)
        assert total == 1.0 - PENALTY * tokens
    groups = {}
    for group, rollout, *_, tokens in found:
        groups.setdefault(group, {})[rollout] = tokens
    advantages = dict(rows(run, SIGNS))
    assert any(advantages.values())  # from the grades alone they would all be 0
    for lengths in groups.values():
        mean = sum(lengths.values()) / len(lengths)
        for rollout, tokens in lengths.items():
            if advantages.get(rollout):
                assert (advantages[rollout] > 0) == (tokens < mean)
    failed = rows(run, "SELECT id, cause, verdict, detail FROM rollouts WHERE status = 'failed'")
    assert [(cause, verdict) for _, cause, verdict, _ in failed] == [
        ("reward_failed", "infrastructure_error")
    ] * 2
    assert {detail for *_, detail in failed} == {
        f"The reward 'short' failed. {HERE}:fails_twice failed: ValueError: the word list is not there yet."
    }
    assert not set(advantages) & {rollout for rollout, *_ in failed}
    summary = json.loads(run.paths().summary_path.read_text())
    assert summary["success_before"] == summary["success_after"] == 1.0
    assert summary["trained_reward"]["formula"] == "1 * reward - 0.01 * short"
    assert summary["trained_reward"]["before_sampled"] < 1.0
    assert "Success is the grader's reward; what was trained on is 1 * reward - 0.01 * short." in shown
    assert all(line["graded"] == 1.0 and line["reward"] < 1.0 for line in read_metrics(run.paths()))
    run.assert_verified()


def test_a_reward_that_always_fails_ends_the_run_with_its_name_and_cause(make_run):  # noqa: F811
    broken = [{"name": "short", "type": "code", "settings": {"function": "json:loads"}, "weight": 1.0}]
    run = make_run("good", rewards=broken, node={"max_running": 4, "abort_after_failures": 6})
    said = run.end(code=2)
    # Four run at once: those that fail with the sixth count too.
    assert re.search(r"\b[6-9] rollouts in a row failed", said)
    assert "reward_failed: The reward 'short' failed. json:loads failed: TypeError" in said
    assert rows(run, "SELECT count(*) FROM rewards") == rows(run, "SELECT count(*) FROM trained") == [(0,)]


def test_a_taken_channel_is_refused_before_the_start(make_run):  # noqa: F811
    run = make_run(
        "good", rewards=[{"type": "code", "settings": {"function": "json:loads", "channel": "reward"}}]
    )
    said = run.end_here(code=2)
    assert "The reward 'code' has the channel 'reward', which is the grader's. Set another `channel`" in said
    assert not run.folder.exists()
