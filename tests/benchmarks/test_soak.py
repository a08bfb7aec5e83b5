"""What a soak remembers, and what it calls wrong."""

from collections import Counter
from dataclasses import asdict, replace

import pytest

from benchmarks.outside.campaign import ENGINE
from benchmarks.recovery import Report
from benchmarks.soak import KINDS, remembered, schedule
from harnessgym.run_folder import write_json

CLEAN = Report(blows={"proxy": {"kill": 5}}, calls=10, graded=9, steps=5, eta=1, staleness=1)


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"trained_twice": 1},
        {"findings": ["hash: call 1: differs"]},
        {"staleness": 2},
        {"judged": 1},
        {"misjudged": 1},
    ],
)
def test_or_it_is_not(wrong):
    assert not replace(CLEAN, **wrong).clean


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_victim_is_stopped_as_often_as_it_is_killed_and_a_seed_gives_the_same_blows(kind):
    blows = schedule(kind, 4, seed=3)
    counts = Counter((blow.victim, blow.how) for blow in blows)
    for victim in KINDS[kind]:
        assert counts[victim, "kill"] == (0 if victim == ENGINE else 4)
        assert (counts[victim, "stop"], counts[victim, "pause"]) == (2, 2)
    assert schedule(kind, 4, seed=3) == blows
    assert schedule(kind, 4, seed=4) != blows
