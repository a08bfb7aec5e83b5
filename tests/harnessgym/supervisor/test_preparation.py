import json
import os
import subprocess
import sys

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor import claim_folder, prepare
from harnessgym.supervisor.preparation import choose_sandbox
from harnessgym.supervisor.process_settings import LaunchPlan
from harnessgym.task import Task
from harnessgym.tasks.source import task_set
from harnessgym.validation.baseline import Baseline, BaselineEntry, digest_of
from tests.harnessgym.tasks.conftest import write_task


def config(**changes):
    raw = {
        "name": "x",
        "policy": {"path": "environments/lookup/policy"},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "pi", "settings": {"argv": ["pi"]}}],
    }
    return validate(RunConfig, raw | changes, "the test")


def test_a_folder_is_made_and_taken_up_again_by_the_same_configuration(tmp_path):
    first = prepare(config(), tmp_path / "run")
    assert prepare(config(), tmp_path / "run") == first
    assert os.path.isabs(first.config().policy.path)


def test_the_configuration_which_may_hold_keys_is_for_this_user_alone(tmp_path):
    folder = prepare(config(), tmp_path)
    assert folder.config_path.stat().st_mode & 0o777 == 0o600
    prepare(config(metrics={"project": "mine"}), tmp_path)
    assert folder.config_path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_another_users_configuration_is_refused_in_words(tmp_path):
    folder = prepare(config(), tmp_path)
    folder.config_path.chmod(0)
    with pytest.raises(ConfigError, match="for the user alone who started the run"):
        folder.config()


def test_another_configuration_names_what_differs(tmp_path):
    prepare(config(), tmp_path)
    with pytest.raises(ConfigError, match="seed was 0 and is 1"):
        prepare(config(seed=1), tmp_path)


def test_where_outside_engines_are_may_change_when_a_run_is_taken_up_again(tmp_path):
    prepare(config(), tmp_path)
    folder = prepare(config(engine={"outside": [{"kind": "vllm", "url": "http://a:1"}]}), tmp_path)
    assert folder.config().engine.outside[0].url == "http://a:1"
    moved = config(engine={"outside": [{"kind": "vllm", "url": "http://b:2/x"}]}, trainer={"processes": 2})
    assert prepare(moved, tmp_path).config().engine.outside[0].name == "vllm-b-2-x"
    with pytest.raises(ConfigError, match=r"engine\.max_batch was 32 and is 8"):
        prepare(config(engine={"max_batch": 8}), tmp_path)


def test_where_the_numbers_go_may_change_when_a_run_is_taken_up_again(tmp_path):
    sink = "tests.harnessgym.supervisor.test_preparation:Available"
    prepare(config(), tmp_path)
    folder = prepare(config(metrics={"sinks": [sink], "project": "mine"}), tmp_path)
    assert folder.config().metrics.sinks == (sink,)
    assert folder.config().metrics.project == "mine"
    with pytest.raises(ConfigError, match="seed was 0 and is 1"):
        prepare(config(seed=1, metrics={"sinks": [sink]}), tmp_path)


def test_a_sink_that_cannot_be_used_is_refused_before_anything_starts(tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"metrics.sinks: There is no sink named 'tensorbord'. Did you mean 'tensorboard'"
    ):
        prepare(config(metrics={"sinks": ["tensorbord"]}), tmp_path)
    lacking = "tests.harnessgym.supervisor.test_preparation:LackingSink"
    (tmp_path / "no_such_tracker").mkdir()  # trackers leave folders of their own name behind
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match="needs no_such_tracker, which is not installed: pip install no_such_tracker"
    ):
        prepare(config(metrics={"sinks": [lacking]}), tmp_path)


class Available:
    needs = "json"


class LackingSink:
    needs = "no_such_tracker"


def test_names_are_checked_without_loading_torch():
    code = (
        "import sys, tempfile, pathlib\nfrom harnessgym.config import load_config\n"
        "from harnessgym.run_config.run import RunConfig\nfrom harnessgym.supervisor import prepare\n"
        "prepare(load_config(RunConfig, pathlib.Path('examples/quickstart.toml')), "
        "pathlib.Path(tempfile.mkdtemp()))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_claim_holds_against_others_and_ends_with_its_process(tmp_path):
    claim = f"""
import pathlib, sys
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor import claim_folder
claim_folder(RunFolder(pathlib.Path({str(tmp_path)!r})))
print("claimed", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", claim], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(ConfigError, match=f"Process {other.pid} is running"):
            claim_folder(RunFolder(tmp_path))
    finally:
        other.kill()
        other.communicate()
    held = claim_folder(RunFolder(tmp_path))
    assert json.loads((tmp_path / "supervisor.pid").read_text())[0] == os.getpid()
    os.close(held)


def test_a_backend_this_machine_lacks_is_replaced_only_with_a_word(tmp_path):
    said = []

    def lacks(backend):
        return "bwrap is missing." if backend.endswith("Lacking") else None

    lacking = config(sandbox={"backend": "tests.harnessgym.supervisor.test_preparation:Lacking"})
    assert choose_sandbox(lacking, said.append, lacks) == "process"
    assert "bwrap is missing" in said[0]
    refusing = config(
        sandbox={"backend": "tests.harnessgym.supervisor.test_preparation:Lacking", "fallback": None}
    )
    with pytest.raises(ConfigError, match="bwrap is missing"):
        choose_sandbox(refusing, said.append, lacks)


class Lacking:
    @staticmethod
    def unavailable():
        return "bwrap is missing."


def test_where_processes_are_placed_may_change_between_two_starts(tmp_path):
    prepare(config(), tmp_path / "run")
    folder = prepare(config(cluster={"nodes": 5}), tmp_path / "run")
    assert folder.config().cluster.nodes == 5


def test_a_folder_of_another_release_says_so(tmp_path):
    folder = prepare(config(), tmp_path / "run")
    recorded = json.loads(folder.config_path.read_text())
    recorded["evaluation"]["retired_setting"] = 1
    folder.config_path.write_text(json.dumps(recorded))
    with pytest.raises(ConfigError, match=r"retired_setting.*Another release made that run.*--folder"):
        prepare(config(), tmp_path / "run")


def test_files_that_a_killed_writer_left_go_with_the_next_claim(tmp_path):
    torn = [tmp_path / ".processes.json.abc", tmp_path / "services" / ".proxy.json.abc"]
    kept = [tmp_path / "processes.json", tmp_path / ".hidden"]
    (tmp_path / "services").mkdir()
    for path in (*torn, *kept):
        path.touch()
    os.close(claim_folder(RunFolder(tmp_path)))
    assert [path.exists() for path in (*torn, *kept)] == [False, False, True, True]


HELPER = {"name": "helper", "path": "environments/lookup/policy"}


def test_every_policy_is_found_and_its_settings_are_checked(tmp_path):
    folder = prepare(config(policies=[HELPER]), tmp_path / "run")
    assert [os.path.isabs(policy.path) for policy in folder.config().all_policies] == [True, True]
    with pytest.raises(ConfigError, match="policy 'helper': path: there is no model at"):
        prepare(config(policies=[HELPER | {"path": "nowhere"}]), tmp_path / "other")
    with pytest.raises(ConfigError, match="update of policy 'helper'"):
        prepare(config(policies=[HELPER | {"update": {"learning": 1}}]), tmp_path / "other")
    with pytest.raises(ConfigError, match="policies was"):
        prepare(config(), tmp_path / "run")


@pytest.mark.parametrize("name", ["policy", "a/b", "..", ""])
def test_names_of_further_policies_are_names_of_folders_that_differ(name):
    with pytest.raises(ConfigError):
        config(policies=[HELPER | {"name": name}])


def test_what_processes_of_several_policies_are_told(tmp_path):
    told = config(
        policies=[HELPER | {"workers": 2, "update": {"lr": 0.5}}],
        trainer={"update": {"lr": 0.1, "loss": "gspo"}},
    )
    launch_plan = LaunchPlan(
        prepare(told, tmp_path),
        told,
        "run",
        "id-1",
        "key",
        "process",
        True,
        {"policy": "id-1", "helper": "id-2"},
    )
    assert launch_plan.engines == ["engine-0", "engine-1", "engine-2", "engine-3"]
    engines = [launch_plan.engine(name, "http://e", "unix:c") for name in launch_plan.engines]
    assert [engine["agent"]["policy_id"] for engine in engines] == ["id-1", "id-1", "id-2", "id-2"]
    assert [engine["served_model_name"] for engine in engines] == ["policy", "policy", "helper", "helper"]
    assert [policy["id"] for policy in launch_plan.proxy()["policies"]] == ["id-1", "id-2"]
    assert {name: launch_plan.trainer(name).get("policy") for name in launch_plan.trainers} == {
        "trainer": None,
        "trainer-helper": "helper",
    }
    own = told.of_policy("helper")
    assert (own.policy.name, own.trainer.update) == ("helper", {"lr": 0.5, "loss": "gspo"})
    assert told.of_policy("") is told
    with pytest.raises(ConfigError, match="It has: policy, helper"):
        told.of_policy("nobody")


def test_a_run_of_one_policy_is_told_of_no_others(tmp_path):
    launch_plan = LaunchPlan(
        prepare(config(), tmp_path), config(), "run", "id-1", "key", "process", True, {"policy": "id-1"}
    )
    assert "policies" not in launch_plan.proxy()
    assert launch_plan.trainer() == {"run": str(tmp_path)}
    assert launch_plan.trainers == ["trainer"]
    assert RunFolder(tmp_path).versions == tmp_path / "versions"
    assert RunFolder(tmp_path, "helper").versions == tmp_path / "policies/helper/versions"


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({"update": {"loss": "gpso"}}, "Did you mean 'gspo'"),
        ({"update": {"corrections": ["tis"]}}, "1 everywhere"),
        ({"update": {"proximal": "snapshot"}, "max_staleness": 0}, "raise max_staleness"),
        ({"algorithm": "ppo", "ppo": {"lamb": 0.5}}, "lam"),
        ({"algorithm": "ppo", "stream": True}, "needs the whole batch before"),
        ({"group_size": 1}, 'set algorithm = "ppo"'),
    ],
)
def test_an_update_that_means_nothing_is_refused_before_there_is_a_folder(tmp_path, trainer, words):
    with pytest.raises(ConfigError, match=words):
        prepare(config(trainer=trainer), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("selector", ["uniform", "vade", "insight", "gdro", "xrpo", "dars", "dart"])
def test_selectors_that_choose_sizes_are_refused_where_a_group_is_one_rollout(tmp_path, selector):
    told = config(generate={"selector": selector}, trainer={"algorithm": "ppo", "group_size": 1})
    if selector in ("uniform", "vade", "insight"):
        prepare(told, tmp_path / "run")
        return
    with pytest.raises(ConfigError, match=rf"generate: The selector {selector} chooses .* raise group_size"):
        prepare(told, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def own_algorithm(settings):
    """Trains nothing."""


def test_settings_that_another_trainer_does_not_apply_are_told_and_not_refused(tmp_path):
    mine = {"algorithm": f"{__name__}:own_algorithm"}
    given = {"update": {"lr": 0.5, "no_such": 1}, "advantage": "rloo", "ppo": {"lam": 0.5}, "steps": 3}
    told = []
    prepare(config(trainer=mine | given), tmp_path / "told", told.append)
    said = [line for line in told if line.startswith("Trainer: ")]
    assert len(said) == 1
    keys = "trainer.advantage, trainer.ppo, trainer.update.lr, trainer.update.no_such"
    assert f"own algorithms read {keys}; {mine['algorithm']} may not" in said[0]
    ours = {"update": {"lr": 0.5}, "advantage": "rloo"}
    for trainer in (mine | {"steps": 3}, ours, ours | {"algorithm": "trainers.grpo:train"}):
        told = []
        prepare(config(trainer=trainer), tmp_path / "-".join(sorted(trainer)), told.append)
        assert not [line for line in told if line.startswith("Trainer: ")]


@pytest.mark.parametrize("algorithm", ["ppo", "trainers.ppo:train", f"{__name__}:own_algorithm"])
def test_settings_of_ppo_are_for_ppo_and_for_algorithms_of_ones_own(algorithm):
    assert config(trainer={"algorithm": algorithm, "ppo": {"lam": 0.5}}).trainer.ppo == {"lam": 0.5}


@pytest.mark.parametrize("algorithm", ["grpo", "trainers.grpo:train"])
def test_settings_of_ppo_are_refused_with_grpo_whatever_it_is_called(algorithm):
    with pytest.raises(ConfigError, match="the algorithm is grpo: leave it out"):
        config(trainer={"algorithm": algorithm, "ppo": {"lam": 0.5}})


@pytest.mark.parametrize(("max_tokens", "warned"), [(4_096, True), (512, True), (511, False)])
def test_calls_that_may_sample_more_than_the_engine_holds_are_warned_of(tmp_path, max_tokens, warned):
    said = []
    prepare(
        config(sampling={"max_tokens": max_tokens}, engine={"max_length": 512}), tmp_path / "run", said.append
    )
    lines = [line for line in said if line.startswith("Sampling: ")]
    words = f"sampling.max_tokens is {max_tokens} and engine.max_length, which prompt and answer share, 512: calls end"
    assert [words in line for line in lines] == [True] * warned


class SharedTasks:
    """A set whose splits share a task."""

    name = "shared"

    def tasks(self, split):
        """The second task is in both splits."""
        numbers = (0, 1) if split == "train" else (1, 2)
        return [Task(f"shared/{number}", f"Do {number}.", grader="builtins:len") for number in numbers]


class RepeatedTasks:
    """A set whose held-out task asks what a training task asks, under another name."""

    name = "repeated"

    def tasks(self, split):
        """One task a split."""
        return [Task(f"repeated/{split}", "Do it.", split, files={"a": "b"}, grader="builtins:len")]


def test_a_run_whose_held_out_tasks_are_trained_on_is_refused(tmp_path):
    shared = {"set": f"{__name__}:SharedTasks"}
    with pytest.raises(ConfigError, match=r"shared/1 is in both splits.*Keep each task in one split"):
        prepare(config(tasks=shared), tmp_path)
    prepare(config(tasks=shared, evaluation={"tasks": 0}), tmp_path)


def test_a_held_out_task_that_asks_what_is_trained_on_is_warned_of(tmp_path):
    lines = []
    prepare(config(tasks={"set": f"{__name__}:RepeatedTasks"}), tmp_path, lines.append)
    assert any(
        "repeated/test is held out, and a training task has the same instruction" in line for line in lines
    )


def test_a_run_that_requires_second_opinions_refuses_tasks_that_cannot_have_them(tmp_path):
    write_task(tmp_path / "set", "one")
    spec = str(tmp_path / "set")
    (task,) = task_set(spec).tasks("train")
    settings = {"tasks": {"set": spec}, "evaluation": {"tasks": 0}, "node": {"second_opinion": "required"}}
    notes = []
    prepare(config(**settings), tmp_path / "unknown", notes.append)
    assert any("never checked for the second opinion that the run requires" in note for note in notes)
    book = Baseline(tmp_path / "set" / "baseline.json")
    book.put(
        task.id,
        BaselineEntry(digest=digest_of(task), state="passed", sandbox="process", by_value="It has no tests."),
    )
    book.flush()
    with pytest.raises(ConfigError, match="set/one: It has no tests") as refused:
        prepare(config(**settings), tmp_path / "refused")
    assert f"harnessgym tasks check {spec} --second-opinion" in str(refused.value)
    prepare(config(**settings | {"node": {}}), tmp_path / "other")
    prepare(config(**settings | {"tasks": {"set": spec, "unfit": True}}), tmp_path / "unfit")
