"""The modes of asynchrony in whole runs: what the ledger, the metrics and `traces verify` say of a few
tiny steps.
"""

import json
import re
import signal
from collections import Counter

import pytest
from sqlalchemy import func, select

from harnessgym.store import TraceStore, runs
from harnessgym.store.tables import calls, groups, rollouts, trained
from harnessgym.traces.token_accounting import account
from harnessgym.traces.verification.verify import verify
from tests.harnessgym.rollout.tiny import HERE
from tests.test_bad_input_runs import Run

SMALL = {"steps": 4, "groups_per_step": 2, "group_size": 2}


def ended(tmp_path, first="lingers", sections=None, running=8, tasks="Patient", second="talks", **trainer):
    """A run that has ended, and its lines of metrics. `running` rollouts run at one time."""
    trainer = SMALL | trainer
    run = Run(
        tmp_path,
        *filter(None, (first, second)),
        tasks={"set": f"{HERE}:{tasks}"},
        trainer=trainer,
        node={"max_running": running},
        **(sections or {}),
    )
    run.end(timeout_s=150)
    lines = [json.loads(line) for line in run.paths().metrics_path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, trainer["steps"] + 1))
    return run, lines


def asked(run, question):
    with TraceStore.open(run.paths().store_url()) as store:
        assert verify(store).findings == ()
        return store.read(question)


@pytest.mark.timeout(200)
def test_over_launching_takes_the_first_and_waits_for_no_straggler(tmp_path):
    """The first rollout to ask sleeps for longer than the run: its group is carried over, and stopped when
    it is too old.
    """
    sections = {"replay": {"success_pool": 1}}
    run, lines = ended(tmp_path, "straggles", sections, over_launch=2, when_stale="drop", max_staleness=1)
    assert all(
        line["length_bias"] > 0 and 0 <= line["off_policy"] <= 1 and line["staleness"] <= 1 for line in lines
    )
    given_up = (
        select(rollouts.c.status)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .where(groups.c.given_up == "too_stale")
    )
    assert "cancelled" in asked(run, lambda conn: conn.execute(given_up).scalars().all())
    assert sum(line["dropped"] for line in lines) >= 1
    order = asked(
        run,
        lambda conn: conn.execute(
            select(groups.c.ordinal, groups.c.submitted_version, trained.c.step)
            .join(rollouts, rollouts.c.group_id == groups.c.id)
            .join(trained, trained.c.rollout_id == rollouts.c.id)
            .distinct()
        ).all(),
    )
    assert len(order) == SMALL["steps"] * SMALL["groups_per_step"]
    begun = Counter(version for _, version, _ in order)
    assert begun[0] > SMALL["groups_per_step"], "nothing was launched beyond the first batch"


@pytest.mark.timeout(200)
def test_a_periodic_run_that_curates_trains_no_token_of_another_version_and_shortens_what_always_succeeds(
    tmp_path,
):
    """Five tasks that two calls solve: when they come again there are two rollouts of each, of two calls at
    most. Training begins before a batch is whole.
    """
    sections = {
        "generate": {"selector": "dart"},
        "control": {"length_cap": True},
        "filter": {"steps_kept": 0.8},
    }
    # One group runs at a time, so that the first has ended long before the last of its batch.
    shape = {"steps": 3, "groups_per_step": 4, "group_size": 4}
    run, lines = ended(
        tmp_path, "calls_twice", sections, 4, "NearlySolved", second=None, periodic=True, **shape
    )
    assert all(
        (line["staleness"], line["off_policy"], line["carried"], line["dropped"]) == (0, 0, 0, 0)
        for line in lines
    )
    assert max(line["early"] for line in lines) > 0
    rows = asked(
        run,
        lambda conn: conn.execute(
            select(trained.c.version, calls.c.version_spans).join(
                calls, calls.c.rollout_id == trained.c.rollout_id
            )
        ).all(),
    )
    assert rows
    assert all({span[2] for span in spans} == {version - 1} for version, spans in rows)
    query = (
        select(groups.c.size, groups.c.sampling).where(groups.c.purpose == "train").order_by(groups.c.ordinal)
    )
    found = asked(run, lambda conn: conn.execute(query).all())
    assert [size for size, _ in found[:5]] == [4] * 5
    assert [size for size, _ in found[8:]] == [2] * 4
    assert [sampling.get("turns") for _, sampling in found[8:]] == [2] * 4
    counted = select(rollouts.c.group_id, func.count()).group_by(rollouts.c.group_id)
    assert sorted(number for _, number in asked(run, lambda conn: conn.execute(counted).all())) == sorted(
        n for n, _ in found
    )


@pytest.mark.timeout(200)
def test_groups_are_trained_again_as_often_as_allowed_and_the_account_still_closes(tmp_path):
    run, lines = ended(tmp_path, sections={"replay": {"reuse": 1}}, max_staleness=3)
    assert_replayed(run, lines)


def assert_replayed(run, lines):
    """Groups were trained again, once at most; each token is accounted for, and none was too old."""
    assert sum(line["replayed"] for line in lines) > 0
    often = asked(run, lambda conn: Counter(conn.execute(select(trained.c.rollout_id)).scalars()))
    assert max(often.values()) == 2
    told = asked(run, lambda conn: account(conn, runs.only(conn).id))
    assert told.unaccounted == 0
    assert told.replayed > 0
    assert max(told.staleness) <= 3


@pytest.mark.timeout(200)
def test_ppo_trains_groups_of_one_rollout_again_as_often_as_allowed_and_the_account_still_closes(tmp_path):
    """Replays are chosen by what collects batches, whatever the algorithm."""
    sections = {"replay": {"reuse": 1}, "generate": {"selector": "vade"}}
    shape = {"groups_per_step": 3, "group_size": 1}
    run, lines = ended(tmp_path, sections=sections, algorithm="ppo", max_staleness=3, **shape)
    found = asked(run, lambda conn: Counter(conn.execute(select(trained.c.step)).scalars()))
    assert found == dict.fromkeys(range(1, SMALL["steps"] + 1), 3)
    assert {1} == asked(run, lambda conn: set(conn.execute(select(groups.c.size)).scalars()))
    assert {(line["signal"], line["reduced"]) for line in lines} == {(1, 0)}
    assert all("value_loss" in line for line in lines)
    assert_replayed(run, lines)


@pytest.mark.timeout(250)
def test_whoever_is_killed_nothing_is_trained_too_often_or_too_late(tmp_path):
    """All that can go together: over-launched, streamed, replayed, tasks submitted again; the trainer and
    the node die.
    """
    trainer = SMALL | {
        "steps": 5,
        "over_launch": 2,
        "when_stale": "requeue",
        "max_staleness": 2,
        "stream": True,
    }
    run = Run(
        tmp_path, "lingers", "talks", trainer=trainer, replay={"reuse": 1}, node={"max_running": 8}
    ).start()
    for steps, victim in ((1, "trainer"), (2, "node")):
        run.wait(lambda steps=steps: run.steps() >= steps, timeout_s=100)
        run.wait(lambda victim=victim: (found := run.pids().get(victim)) is not None and found.alive())
        run.pids()[victim].signal(signal.SIGKILL)
    said = run.end(timeout_s=150)
    for victim in ("trainer", "node"):
        assert re.search(rf"{victim}\b.*starting it again", said), said
    often = asked(run, lambda conn: Counter(conn.execute(select(trained.c.rollout_id)).scalars()))
    assert max(often.values()) <= 2
    told = asked(run, lambda conn: account(conn, runs.only(conn).id))
    assert told.replayed > 0
    assert told.unaccounted == 0
    assert max(told.staleness) <= 2
