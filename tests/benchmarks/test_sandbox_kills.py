"""Three seeded SIGKILLs of a node that runs containers, and two cuts of its connection to the engine.

`python -m benchmarks.sandbox.kills` does fifty of each.
"""

import pytest

from benchmarks.sandbox.campaign import CUT, Campaign
from harnessgym.sandboxes.docker import DockerSettings
from harnessgym.sandboxes.images.layers import ensure

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def image():
    """The image that rollouts run in: built once on a new machine, which takes minutes."""
    return ensure(DockerSettings().image, ())


def check(report, rollouts):
    assert report.rollouts == rollouts
    assert (report.wrong.lost, report.wrong.doubled, report.wrong.unearned) == ([], [], [])
    assert (report.leaks, report.lost_calls, report.findings) == ([], 0, [])
    assert report.clean


@pytest.mark.timeout(280)
def test_a_node_killed_three_times_leaves_nothing_and_every_rollout_finishes_once():
    report = Campaign("docker", 1, rollouts=8, tasks=4).run(["preparing", "running", "grading"])
    assert report.kills == {"preparing": 1, "running": 1, "grading": 1}
    assert set(report.causes) <= {"node_lost"}
    check(report, 8)


@pytest.mark.timeout(280)
def test_an_engine_that_is_cut_off_twice_costs_no_rollout():
    report = Campaign("docker", 2, rollouts=12, tasks=4).run([CUT, CUT])
    assert report.cuts == 2
    assert report.dropped > 0
    assert report.gave_up == []
    check(report, 12)
