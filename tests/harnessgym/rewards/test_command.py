"""A command as a reward: what counts of its output, and what it may read."""

import pytest

from harnessgym.errors import ConfigError, RewardError
from harnessgym.reward import RewardContext, Score
from harnessgym.rewards.command import CommandReward, CommandRewardSettings, scores_of
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio


def of_rollout(value, channel="task", detail=None):
    return Score("rollout", "", channel, value, detail)


@pytest.mark.parametrize(
    ("output", "scores"),
    [
        ("0.5", [of_rollout(0.5)]),
        ("noise\n7\n", [of_rollout(7.0)]),
        ("1\n2\n \n\n", [of_rollout(2.0)]),
        ('{"value": 1, "detail": "why"}', [of_rollout(1.0, detail="why")]),
        ('{"value": -1, "channel": "cost.x"}', [of_rollout(-1.0, "cost.x")]),
        ("[1, 2.5]", [of_rollout(1.0), of_rollout(2.5)]),
        (
            '[{"value": 1, "unit": "turn", "target": "c1", "channel": "process.ok"}, 0]',
            [Score("turn", "c1", "process.ok", 1.0), of_rollout(0.0)],
        ),
    ],
)
def test_the_last_line_counts(output, scores):
    assert scores_of(output, "task") == scores


@pytest.mark.parametrize("output", ["", " \n", "done", "1 2", '{"value": 1', "0.5 # half", "[" * 20_000])
def test_an_output_without_a_score_is_refused(output):
    with pytest.raises(RewardError, match="last line of its output is no number and no JSON"):
        scores_of(output, "task")


@pytest.mark.parametrize("output", ["null", '"0.5"', "[]", "[[1]]", '[1, "two"]', "[null]"])
def test_other_values_are_no_scores(output):
    with pytest.raises(RewardError, match="no number, object or list of objects"):
        scores_of(output, "task")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("{}", "value"),
        ('{"value": "many"}', "value"),
        ('{"value": 1, "unit": "step"}', "unit"),
        ('{"value": 1, "reason": "x"}', "reason"),
        ('{"value": 1, "target": null}', "target"),
    ],
)
def test_a_wrong_member_of_a_score_is_named(output, problem):
    with pytest.raises(ConfigError, match=rf"what a reward printed has 1 wrong setting:\s+{problem}"):
        scores_of(output, "task")


def test_a_long_output_is_cut_in_the_message():
    with pytest.raises(RewardError) as refused:
        scores_of("x" * 5_000, "task")
    assert str(refused.value).count("x") == 500


@pytest.fixture
async def record(recording, tmp_path):
    recording.publish(0)
    _, (rollout_id, _) = recording.group()
    settings = ProcessSettings(proxy_url="http://127.0.0.1:1", workspace_root=tmp_path / "w")
    async with ProcessBackend(settings) as backend, backend.open(Limits()) as sandbox:
        yield RewardContext(recording.store, rollout_id, sandbox=sandbox)


async def scored(record, *argv, **settings):
    return await CommandReward(CommandRewardSettings(argv=argv, **settings)).score(record)


async def test_a_command_runs_in_the_workspace(record):
    (record.workspace / "answer.txt").write_text("0.25\n")
    assert await scored(record, "cat", "answer.txt", channel="process.x") == [of_rollout(0.25, "process.x")]


async def test_its_own_files_replace_those_that_the_harness_left(record):
    (record.workspace / "grade.sh").write_text("echo 1")
    files = {"grade.sh": "cat data/half", "data/half": "0.5"}
    assert await scored(record, "sh", "grade.sh", files=files) == [of_rollout(0.5)]


async def test_a_command_that_fails_gives_no_score(record):
    with pytest.raises(RewardError, match=r"`sh -c echo 1; echo broken >&2; exit 3` failed: .*3.*broken"):
        await scored(record, "sh", "-c", "echo 1; echo broken >&2; exit 3")


async def test_a_command_that_takes_too_long_gives_no_score(record):
    with pytest.raises(RewardError, match="`sleep 60` failed"):
        await scored(record, "sleep", "60", timeout_s=0.2)
