"""A few seeded SIGKILLs of each process in the middle of a run. `make soak` does fifty."""

import pytest

from benchmarks.outside.campaign import AGENT, AgentCampaign
from benchmarks.raylets.campaign import MACHINE, MachineCampaign
from benchmarks.recovery import Campaign
from tests.support.postgres import PostgresServer

SMALL = ["--trainer.steps", "12", "--trainer.groups_per_step", "2", "--trainer.group_size", "4"]
ENDLESS = ["--trainer.steps", "1000", *SMALL[2:]]


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("victim", "seed"), [("proxy", 1), ("engine", 2), ("node", 3), ("trainer", 4), ("supervisor", 5)]
)
def test_killed_three_times_nothing_is_lost_and_nothing_trained_twice(tmp_path, victim, seed):
    report = Campaign(tmp_path / "run", [victim] * 3, seed, SMALL).run()
    assert report.kills == {victim: 3}
    assert report.steps == 12
    assert (report.lost, report.trained_twice, report.findings, report.judged) == (0, 0, [], 0)
    assert report.clean
    assert report.eta == 1


@pytest.mark.timeout(280)
def test_a_weight_agent_killed_comes_back_and_every_call_has_the_version_that_sampled_it(tmp_path):
    report = AgentCampaign(tmp_path / "run", [AGENT] * 3, 6, ENDLESS).run()
    assert report.kills == {AGENT: 3}
    assert report.clean, report.findings
    assert report.noted["outside_calls"] > 0
    assert report.noted["mislabelled"] == 0


@pytest.mark.ray
@pytest.mark.postgres
@pytest.mark.timeout(420)
def test_a_machine_of_a_cluster_is_killed_and_joins_again(tmp_path):
    with PostgresServer() as database:
        report = MachineCampaign(
            tmp_path / "run", [MACHINE] * 3, 7, ENDLESS, store_url=database.create_database()
        ).run()
    assert report.kills == {MACHINE: 3}
    assert report.clean, report.findings
    assert report.steps >= 1
    assert len(report.next_step_s[MACHINE]) == 3
