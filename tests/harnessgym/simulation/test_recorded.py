"""Draws from a run folder, against the rollouts in it."""

import json

import pytest
from sqlalchemy import update

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.outcome.failure import StopReason
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import write_json
from harnessgym.simulation.comparison import arm, with_recorded
from harnessgym.simulation.simulation import Simulation
from harnessgym.store import TraceStore, rollouts
from harnessgym.store.durations import RolloutDurations, rollout_durations
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import calls
from tests.harnessgym.traces.conftest import database, recording

__all__ = ["database", "recording"]


@pytest.fixture
def folder(tmp_path, recording):
    """A run folder with two finished rollouts: two calls with 2.4 s between them, and one; a third runs
    yet.
    """
    _, (first, second, third) = recording.group(size=3)
    talk = recording.session(first)
    opened = talk.call(prompt=7, versions=(0,) * 4)
    followed = talk.call(prompt=3, after=opened, versions=(0,) * 9)
    talk.call(prompt=2, after=followed, versions=(0,) * 5, kind="side")
    recording.session(second).call(prompt=6, versions=(0,) * 2)
    recording.session(third).call(prompt=6, versions=(0,) * 2)
    at = dict(zip((opened, followed), (1_000.0, 1_002.5), strict=True))
    for call_id, seconds in at.items():
        recording.store.write(
            lambda conn, call_id=call_id, seconds=seconds: conn.execute(
                update(calls).where(calls.c.id == call_id).values(created_at=seconds)
            )
        )
    for rollout_id, seconds in ((first, 1.5), (second, 0.5)):
        outcome = RolloutOutcome(
            rollout_id,
            StopReason.FINISHED,
            "valid",
            {"reward": 1.0},
            latencies={"run": 9.0, "evaluate": seconds},
        )
        assert recording.store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))
    return tmp_path


def test_what_a_rollout_took_is_read_back(folder, recording):
    found = recording.store.read(lambda conn: rollout_durations(conn, recording.run_id))
    assert sorted(found, key=lambda each: -len(each.tokens)) == [
        RolloutDurations((4, 9), (7, 3), (pytest.approx(2.4),), 1.5),
        RolloutDurations((2,), (6,), (), 0.5),
    ]


def test_a_simulation_draws_from_a_recorded_run(make_config, folder):
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "step_s": 3.0}) + "\n" for step in range(2))
    )
    config = with_recorded(make_config(), folder)
    assert sorted(config.work.tokens.values) == [2, 4, 9]
    assert sorted(config.work.turns.values) == [1, 2]
    assert config.trainer.step_s.values == (3.0, 3.0)
    assert config.work.environment_s.values == pytest.approx((2.4,))
    run = Simulation(arm(config, "eta-1"))
    run.run()
    trained = [
        member for groups in run.learner.ledger.values() for group in groups for member in group.members
    ]
    assert {number for member in trained for number in member.work.tokens} == {2, 4, 9}


def test_the_database_is_the_one_that_the_runs_configuration_names(make_config, folder, tmp_path_factory):
    """A run on PostgreSQL has no database in its folder."""
    root = tmp_path_factory.mktemp("run")
    raw = {
        "name": "elsewhere",
        "policy": {"path": str(root)},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "pi"}],
    }
    raw |= {"store": {"url": f"sqlite:///{folder}/traces.db"}}
    write_json(root / "config.json", validate(RunConfig, raw, "the test").model_dump(mode="json"))
    config = with_recorded(make_config(), root)
    assert sorted(config.work.tokens.values) == [2, 4, 9]


def test_steps_written_twice_or_torn_count_once_or_not_at_all(make_config, folder):
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "step_s": 3.0}\n{"step": 2, "step_s": 9.0}\n{"step": 2, "ste{"step": 2, "step_s": 5.0}\n'
        '{"step": 2, "step_s": 4.0}\n{"step": 3, "step_s": 8'
    )
    assert with_recorded(make_config(), folder).trainer.step_s.values == (3.0, 4.0)


def test_a_folder_without_a_run_is_refused(make_config, tmp_path):
    with pytest.raises(ConfigError, match="has no recorded run"):
        with_recorded(make_config(), tmp_path)
    TraceStore.create(f"sqlite:///{tmp_path}/traces.db").close()
    with pytest.raises(ConfigError, match="no finished rollout"):
        with_recorded(make_config(), tmp_path)
