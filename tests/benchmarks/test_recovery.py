"""A seeded SIGKILL of each process in the middle of a run, and two stops. `make soak` does fifty of each."""

import re

import pytest

from benchmarks.outside.campaign import AGENT, ENGINE, AgentCampaign
from benchmarks.raylets.campaign import MACHINE, MachineCampaign
from benchmarks.recovery import VICTIMS, Blow, Campaign
from tests.support.postgres import PostgresServer

HOWS = ("kill", "pause", "stop")
TOOL_S = 0.7
"""How long a tool of the harnesses takes. Waiting is free, and the other processes take fewer steps while one
is stopped.
"""


def few_rollouts(steps, *harnesses):
    """Settings of the shortest steps there are, so that many blows cost little, with harnesses of the examples.
    A node loads the SDK of each.
    """
    sections = [
        f"""{{ name = "{name}", type = "command", settings = {{
            argv = ["python", "examples/lookup_{name}.py", "--delay", "{TOOL_S}:0"],
            prewarm = true, warm = "{name}" }} }}""".replace("\n", " ")
        for name in harnesses
    ]
    settings = {"trainer.steps": steps, "trainer.groups_per_step": 1, "trainer.group_size": 2}
    settings["harnesses"] = f"[{', '.join(sections)}]"
    return [f"--{name}={value}" for name, value in settings.items()]


def blows(*victims):
    """The stops come last: the other processes go on meanwhile, and may take many of the steps left."""
    return [Blow(victim, how) for how in HOWS for victim in victims]


@pytest.mark.timeout(900)
def test_killed_and_stopped_nothing_is_lost_trained_twice_or_misjudged(tmp_path):
    steps = 32
    settings = few_rollouts(steps, "openai", "anthropic")
    report = Campaign(tmp_path / "run", blows(*VICTIMS), 1, settings).run()
    assert report.blows == dict.fromkeys(VICTIMS, dict.fromkeys(HOWS, 1))
    assert report.steps == steps
    assert report.graded >= steps * 2
    assert (report.lost, report.trained_twice, report.findings) == (0, 0, [])
    assert (report.judged, report.misjudged) == (0, 0)
    assert report.clean
    assert report.eta == 1


@pytest.mark.timeout(600)
def test_a_weight_agent_comes_back_and_every_call_has_the_version_that_sampled_it(tmp_path):
    settings = few_rollouts(1000, "openai")
    report = AgentCampaign(tmp_path / "run", [*blows(AGENT), Blow(ENGINE, "stop")], 6, settings).run()
    assert report.blows == {AGENT: {"kill": 1, "pause": 1, "stop": 1}, ENGINE: {"stop": 1}}
    assert report.clean, report
    assert report.noted["outside_calls"] > 0
    assert report.noted["mislabelled"] == 0
    said = " ".join((tmp_path / "run.log").read_text().split())  # its lines are wrapped
    assert re.search(r"outside \(vllm at \S+\) is silent: it accepts connections and does not answer", said)


@pytest.mark.ray
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_a_machine_of_a_cluster_is_killed_or_freezes_and_joins_again(tmp_path):
    settings = few_rollouts(1000, "openai")
    with PostgresServer() as database:
        report = MachineCampaign(
            tmp_path / "run", blows(MACHINE), 7, settings, store_url=database.create_database()
        ).run()
    assert report.blows == {MACHINE: {"kill": 1, "pause": 1, "stop": 1}}
    assert report.clean, report
    assert report.steps >= 1
    assert sum(map(len, report.next_step_s[MACHINE].values())) == 3
