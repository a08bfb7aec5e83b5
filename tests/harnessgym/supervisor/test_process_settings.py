"""The settings of a run's processes, from a real configuration in a run's folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.supervisor.process_settings import LaunchPlan, outside_names
from tests.harnessgym.supervisor.starts import config

HELPER = {"name": "helper", "path": "weights/helper", "workers": 2}
OUTSIDE = [
    {"kind": "vllm", "url": "http://gpu-1:8000"},
    {"kind": "sglang", "url": "http://gpu-2:30000/", "policy": "helper"},
]
ENGINE = {
    "workers": 3,
    "outside": OUTSIDE,
    "drain_s": 2.5,
    "updates_at_once": 2,
    "max_batch": 8,
    "idle_s": 7.0,
}
WEIGHTS = {"update_leases": 2, "drain_s": 2.5}


@pytest.fixture
def make_orders(tmp_path):
    def make(**changes):
        settings = config(**changes)
        folder = RunFolder(tmp_path / "run")
        write_json(folder.config_path, settings.model_dump(mode="json"))
        ids = {policy.name: f"id-{place}" for place, policy in enumerate(settings.all_policies)}
        return LaunchPlan(
            folder, settings, "run-7", "id-0", "the-key", "process", training=True, policy_ids=ids
        )

    return make


@pytest.fixture
def launch_plan(make_orders):
    """Of a run with two policies, five engines of its own and two outside."""
    return make_orders(policies=[HELPER], engine=ENGINE, seed=40, supervisor={"threads": 3})


def test_processes_are_named_by_what_they_do(launch_plan):
    assert launch_plan.engines == [f"engine-{number}" for number in range(5)]
    assert launch_plan.trainers == ["trainer", "trainer-helper"]
    assert (
        launch_plan.outside == outside_names(launch_plan.config) == ["vllm-gpu-1-8000", "sglang-gpu-2-30000"]
    )


def test_engines_serve_their_policies_and_sample_different_noise(launch_plan):
    engines = [launch_plan.engine(name, f"http://{name}", "unix:c") for name in launch_plan.engines]
    path = launch_plan.config.policy.path
    assert [engine["model"] for engine in engines] == [path, path, path, "weights/helper", "weights/helper"]
    assert [engine["seed"] for engine in engines] == [40, 41, 42, 43, 44]
    assert [engine["worker_id"] for engine in engines] == launch_plan.engines
    assert {(engine["max_batch"], engine["threads"]) for engine in engines} == {(8, 3)}


def test_an_engines_weight_agent_knows_where_the_engine_is(launch_plan):
    assert launch_plan.engine("engine-4", "http://e:1", "unix:c")["agent"] == {
        "store": launch_plan.folder.store_url(),
        "policy_id": "id-1",
        "run_id": "run-7",
        "control_url": "unix:c",
        "control_key": "the-key",
        "address": "http://e:1",
        **WEIGHTS,
    }


@pytest.mark.parametrize(
    ("name", "kind", "url", "policy_id"),
    [
        ("vllm-gpu-1-8000", "vllm", "http://gpu-1:8000", "id-0"),
        ("sglang-gpu-2-30000", "sglang", "http://gpu-2:30000/", "id-1"),
    ],
)
def test_an_outside_engine_has_a_weight_agent_of_its_policy(launch_plan, name, kind, url, policy_id):
    assert launch_plan.weights_agent(name, "http://control") == {
        "store": launch_plan.folder.store_url(),
        "policy_id": policy_id,
        "run_id": "run-7",
        "control_url": "http://control",
        "control_key": "the-key",
        "engine": kind,
        "engine_url": url,
        "worker_id": name,
        "scratch": str(launch_plan.folder.staged),
        **WEIGHTS,
    }


def test_a_name_that_no_engine_has_is_an_error(launch_plan):
    for order in (launch_plan.weights_agent, lambda name, url: launch_plan.engine(name, "http://e", url)):
        with pytest.raises(ValueError, match="engine-9"):
            order("engine-9", "unix:c")


def test_the_proxy_serves_all_policies_within_the_engines_time_limits(launch_plan):
    settings = launch_plan.proxy()
    assert [(each["id"], each["name"], each["path"]) for each in settings["policies"]] == [
        ("id-0", "policy", launch_plan.config.policy.path),
        ("id-1", "helper", "weights/helper"),
    ]
    limits = {name: settings[name] for name in EngineTimeouts.model_fields}
    assert limits == {"first_token_s": 300.0, "idle_s": 7.0, "probe_s": 5.0}
    assert (settings["served_model_name"], settings["policy"]) == ("policy", launch_plan.config.policy.path)
    assert (settings["control_key"], settings["run_id"]) == ("the-key", "run-7")


def test_a_proxy_of_one_policy_is_told_of_no_others(make_orders):
    assert "policies" not in make_orders().proxy()


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_everyone_opens_the_store_of_the_run(make_orders, synchronous):
    launch_plan = make_orders(store={"url": "sqlite:////data/all.db", "synchronous": synchronous})
    settings = [launch_plan.proxy(), launch_plan.engine("engine-0", "http://e", "unix:c")["agent"]]
    assert {each["store"] for each in settings} == {"sqlite:////data/all.db"}
    assert launch_plan.proxy()["synchronous"] == synchronous


def test_a_policy_without_an_id_of_its_own_has_the_runs(launch_plan):
    alone = replace(launch_plan, policy_ids={})
    assert alone.engine("engine-0", "http://e", "unix:c")["agent"]["policy_id"] == "id-0"
    assert alone.weights_agent("sglang-gpu-2-30000", "unix:c")["policy_id"] == "id-0"


@pytest.mark.parametrize(("socket_dir", "expected"), [(None, None), (Path("/tmp/s"), "/tmp/s")])
def test_a_node_uses_the_proxys_socket_or_relays_its_own(launch_plan, socket_dir, expected):
    assert launch_plan.node("node-2", "unix:c", "http://proxy:9", socket_dir) == {
        "run": str(launch_plan.folder.root),
        "run_id": "run-7",
        "name": "node-2",
        "control_url": "unix:c",
        "control_key": "the-key",
        "proxy_socket_dir": expected,
        "proxy_url": "http://proxy:9",
        "sandbox": "process",
    }


def test_a_trainer_knows_its_run_and_a_further_one_its_policy(launch_plan):
    assert launch_plan.trainer() == {"run": str(launch_plan.folder.root)}
    assert launch_plan.trainer("trainer-helper") == {"run": str(launch_plan.folder.root), "policy": "helper"}


def test_all_settings_can_be_written_as_json(launch_plan):
    settings = [
        launch_plan.proxy(),
        *(launch_plan.engine(name, "http://e", "unix:c") for name in launch_plan.engines),
        *(launch_plan.weights_agent(name, "unix:c") for name in launch_plan.outside),
        *(launch_plan.trainer(name) for name in launch_plan.trainers),
        launch_plan.node("node", "unix:c", "http://proxy", Path("/tmp/s")),
    ]
    assert json.loads(json.dumps(settings)) == settings


def test_the_proxy_reads_answers_with_the_parsers_of_the_run_file(make_orders):
    launch_plan = make_orders(policies=[{**HELPER, "parser": "llama3"}])
    settings = launch_plan.proxy()
    assert settings["parser"] == "auto"
    assert [each["parser"] for each in settings["policies"]] == ["auto", "llama3"]
