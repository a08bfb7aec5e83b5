"""What the simulated ways to train are judged by."""

from dataclasses import replace

import pytest

from benchmarks.asynchrony import parts, targets
from benchmarks.asynchrony.run import _table, _written
from harnessgym.config import validate
from harnessgym.run_folder import write_json
from harnessgym.simulation.report import figures, most_stale, tables
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.simulation import Simulation


@pytest.fixture(scope="module")
def ten():
    """Ten outcomes, in the last of which a few tokens were older than the others' oldest."""
    work = {"turns": 2, "tokens": 20, "environments": 8, "graders": 4}
    trainer = {
        "steps": 3,
        "warmup": 0,
        "groups_per_step": 2,
        "group_size": 2,
        "step_s": 1,
        "max_staleness": 1,
    }
    config = validate(
        SimulationConfig, {"engines": {"workers": 2}, "work": work, "trainer": trainer}, "the test"
    )
    outcome = Simulation(config).run()
    usual, unlucky = (
        replace(outcome, staleness={0: 10, 1: 90}),
        replace(outcome, staleness={0: 10, 1: 87, 5: 3}),
    )
    return [*[usual] * 9, unlucky]


def test_one_seed_in_ten_that_is_too_stale_misses_the_target(ten):
    row = {**figures(ten), "cpu_s": 1.0, "rollouts": 1, "unaccounted": 0}
    assert row["max_staleness"]["high"] == 1  # the interval of the median leaves it out
    names = ("sync", "eta-1", "eta-2", "eta-4", "eta-8")
    verdicts = targets.judge(
        {"arms": {"rows": dict.fromkeys(names, row)}, "unlucky": {"rows": {"eta-4, kills": row}}}
    )
    stale = {
        verdict.what: (verdict.figure, verdict.met)
        for verdict in verdicts
        if "largest staleness" in verdict.what
    }
    assert stale == {
        "η = 1, largest staleness": (5, False),
        "η = 2, largest staleness": (5, False),
        "η = 4, largest staleness": (5, False),
        "η = 8, largest staleness": (5, True),
        "η = 4 under kills, largest staleness": (5, False),
    }


def test_the_tables_show_the_oldest_token_of_all_seeds(ten):
    assert most_stale(figures(ten)["staleness"]) == 5
    assert most_stale({}) == 0
    column = next(column for column in tables({"eta-1": ten})[1].columns if column.header == "at most")
    assert list(column.cells) == ["5"]
    column = next(
        column
        for column in _table("arms", {"eta-1": figures(ten)}, 1.0).columns
        if column.header == "at most"
    )
    assert list(column.cells) == ["5"]


def test_an_interrupted_run_of_the_same_kind_is_taken_up(tmp_path):
    path, kind = tmp_path / "async.json", {"quick": False, "seeds": 10}
    assert _written(path, kind) == {}
    write_json(path, kind | {"parts": {"tail": {"rows": {}}}})
    assert _written(path, kind) == {"tail": {"rows": {}}}
    assert _written(path, kind | {"seeds": 3}) == _written(path, kind | {"quick": True}) == {}


def test_every_arm_is_near_its_bound_and_none_beyond(ten):
    near, far, beyond = (
        replace(ten[0], rollouts_per_s=share * ten[0].bound.rollouts_per_s) for share in (0.96, 0.9, 1.2)
    )

    def verdicts(outcome):
        row = {**figures([outcome]), "cpu_s": 1.0, "rollouts": 1, "unaccounted": 0}
        names = ("sync", "recycle", "over-launch", "eta-1", "eta-2", "eta-4", "eta-8")
        found = targets.judge({"arms": {"rows": dict.fromkeys(names, row)}})
        return {verdict.what: verdict.met for verdict in found if "over its bound" in verdict.what}

    assert len(verdicts(near)) == 8
    assert all(verdicts(near).values())
    assert [what for what, met in verdicts(far).items() if met] == ["any arm, throughput over its bound"]
    assert [what for what, met in verdicts(beyond).items() if not met] == [
        "any arm, throughput over its bound"
    ]


@pytest.mark.parametrize("eta", [0, 2, 4, 8])
def test_what_counts_begins_when_the_start_is_forgotten(eta):
    trainer = parts._base(eta, quick=False).trainer
    assert trainer.warmup >= 2 * (eta + 1)
    assert trainer.steps - trainer.warmup >= 3 * (eta + 1)
