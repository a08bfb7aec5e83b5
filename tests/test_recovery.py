"""Three seeded SIGKILLs of each process in the middle of a run. `make soak` does fifty."""

import pytest

from benchmarks.recovery import Campaign

SMALL = ["--trainer.steps", "12", "--trainer.groups_per_step", "2", "--trainer.group_size", "4"]


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("victim", "seed"), [("proxy", 1), ("engine", 2), ("node", 3), ("trainer", 4), ("supervisor", 5)])
def test_killed_three_times_nothing_is_lost_and_nothing_trained_twice(tmp_path, victim, seed):
    report = Campaign(tmp_path / "run", [victim] * 3, seed, SMALL).run()
    assert report.kills == {victim: 3}
    assert report.steps == 12
    assert (report.lost, report.trained_twice, report.findings) == (0, 0, [])
