"""What a soak remembers, and what it calls wrong."""

from dataclasses import asdict, replace

import pytest

from benchmarks.recovery import Report
from benchmarks.soak import remembered
from harnessgym.run_folder import write_json

CLEAN = Report(
    kills={"proxy": 5}, calls=10, stop_reasons={"finished": 9, "node_lost": 2}, steps=5, eta=1, staleness=1
)


def test_campaigns_of_another_seed_or_commit_run_again(tmp_path, capsys):
    path = tmp_path / "state.json"
    assert remembered(path, 0, "abc") == []
    mine = {"kind": "processes", "seed": 0, "commit": "abc", **asdict(CLEAN)}
    write_json(
        path, [mine, mine | {"seed": 1}, mine | {"commit": "def"}, {**asdict(CLEAN), "kind": "agents"}]
    )
    assert remembered(path, 0, "abc") == [mine]
    assert (
        "Of 4 remembered campaigns, 3 had another seed or commit: they run again." in capsys.readouterr().out
    )
    assert remembered(path, 1, "abc") == [mine | {"seed": 1}]


def test_a_campaign_is_clean():
    assert CLEAN.clean
    assert CLEAN.judged == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"trained_twice": 1},
        {"findings": ["hash: call 1: differs"]},
        {"staleness": 2},
        {"stop_reasons": {"finished": 9, "time_limit": 1}},
    ],
)
def test_or_it_is_not(wrong):
    assert not replace(CLEAN, **wrong).clean
