"""What an evaluation takes from a run's file: tasks, a harness, the sandbox and the sampling."""

import pytest

from harnessgym.batch_rollout.settings import CampaignSettings
from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.evaluation.policies import as_in_run
from harnessgym.run_config.run import RunConfig


def config(**changes):
    return validate(
        RunConfig,
        {
            "name": "run",
            "policy": {"path": "model", "name": "small"},
            "tasks": {"set": "lookup"},
            "harnesses": [{"name": "one", "settings": {"command": ["true"]}}],
            "sandbox": {"backend": "process"},
            **changes,
        },
        "the test",
    )


def taken_over(harness=None, **changes):
    messages = []
    return as_in_run(config(**changes), harness, messages.append), messages


def test_sampling_limits_and_names_are_the_runs():
    settings, messages = taken_over(
        seed=9,
        sampling={"temperature": 0.5, "max_tokens": 77},
        node={"max_running": 3, "max_attempts": 4, "second_opinion": "required", "integrity": "by_value"},
        evaluation={"tasks": 5},
        tasks={"set": "lookup", "unfit": True},
    )
    expected = {
        "tasks": "lookup", "unfit": True, "limit": 5, "sandbox": "process", "temperature": 0.5, "max_tokens": 77,
        "at_once": 3, "retries": 3, "seed": 9, "model": "small", "harness_settings": {"command": ["true"]},
        "second_opinion": "required", "integrity": "by_value",
    }  # fmt: skip
    assert {key: settings[key] for key in expected} == expected
    assert messages == []


def test_a_run_without_evaluation_limits_no_tasks():
    assert taken_over(evaluation={"tasks": 0})[0]["limit"] is None


def test_engine_timeouts_are_the_runs():
    settings, _ = taken_over(engine={"first_token_s": 11, "idle_s": 12})
    assert (settings["first_token_s"], settings["idle_s"]) == (11, 12)


TWO = [
    {"name": "one", "settings": {"command": ["true"]}},
    {"name": "two", "settings": {"command": ["false"]}},
]


def test_the_first_of_several_harnesses_is_taken_and_the_others_are_named():
    settings, messages = taken_over(harnesses=TWO)
    assert settings["harness_settings"] == {"command": ["true"]}
    assert messages == ["Harness: one, the first of the run's. --harness takes another: two."]


def test_a_named_harness_is_taken_without_a_message():
    settings, messages = taken_over("two", harnesses=TWO)
    assert settings["harness_settings"] == {"command": ["false"]}
    assert messages == []


def test_an_unknown_harness_has_a_hint():
    with pytest.raises(ConfigError, match=r"The run has no harness 'tow'\. Did you mean 'two'\?"):
        taken_over("tow", harnesses=TWO)


def test_a_campaign_accepts_what_is_taken_over(tmp_path):
    settings, _ = taken_over()
    campaign = validate(CampaignSettings, {**settings, "folder": tmp_path}, "the test")
    assert (campaign.tasks, campaign.model, campaign.harness) == ("lookup", "small", "command")
