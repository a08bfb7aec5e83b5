"""The progress of a batch rollout as a line and as a panel."""

import io

import pytest
from rich.console import Console

from harnessgym.batch_rollout.batch_rollout import BatchProgress
from harnessgym.cli.rollout_table import RolloutTable, line_of, panel
from harnessgym.rollout.stage import StageCounts

STAGE = StageCounts("run", limit=8, waiting=2, running=3, done=1, waited_s=10.0)


def progress(**changed):
    fields = {
        "total": 10,
        "by_status": {"running": 3, "failed": 2},
        "done": 4,
        "not_graded": 1,
        "reward": 0.25,
        "tokens_per_s": 123.4,
        "eta_s": 61.2,
        "stages": [STAGE],
    }
    return BatchProgress(**{**fields, **changed})


def drawn(shown):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def test_a_line_holds_every_figure():
    assert line_of(progress()) == ("4/10 done  1 not graded  reward 0.250  123 tok/s  ETA 61 s  run 3+2")


def test_what_is_not_known_yet_is_a_dash():
    assert line_of(progress(reward=None, eta_s=None, stages=[])) == (
        "4/10 done  1 not graded  reward -  123 tok/s  ETA -  "
    )


def test_a_panel_shows_stages_with_their_mean_wait():
    text = drawn(panel(progress()))
    assert "4/10 done   3 running   2 attempts failed   1 not graded" in text
    (row,) = [line for line in text.splitlines() if " run " in line]
    assert row.strip("│ ").split() == ["run", "3", "8", "2", "1", "2.50", "s"]


@pytest.mark.parametrize("stage", [StageCounts("run", 8, 0, 0, 0, 0.0), StageCounts("run", 8, 9, 0, 0, 0.0)])
def test_a_stage_that_admitted_nothing_has_no_wait(stage):
    assert "0.00 s" in drawn(panel(progress(total=0, done=0, by_status={}, stages=[stage])))


def test_without_a_terminal_the_end_is_written_at_once_and_only_once():
    out = io.StringIO()
    with RolloutTable(Console(file=out, width=200)) as table:
        assert table.live is None
        table(progress())
        table(progress(done=5))
        table(progress(done=10))
        table(progress(done=10, not_graded=2))
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["4/10", "10/10"]


def test_a_line_is_not_repeated():
    out = io.StringIO()
    table = RolloutTable(Console(file=out, width=200))
    for text in ("a", "a", "[b]", "a"):
        table.add_line(text)
    assert out.getvalue() == "a\n[b]\na\n"
