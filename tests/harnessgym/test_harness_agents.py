"""Installed agents: every one keeps to the contract, and says what its own protocol needs."""

import json
import tomllib

import pytest
from pydantic import ValidationError

from harnessgym.harness import Endpoint
from harnessgym.harnesses.program import HOME, NODE
from harnessgym.registry import load, names
from harnessgym.task import Limits, Task

TASK = Task("t/1", 'Do "this".', limits=Limits(wall_s=3))
ENDPOINT = Endpoint("http://127.0.0.1:8080", "hg-secret", "tiny")
AGENTS = [name for name in names("harness") if name != "command"]


def make(name, **settings):
    factory = load("harness", name)
    return factory(factory.settings(folder="/opt/agents", **settings))


def launch(name, **settings):
    return make(name, **settings).launch(TASK, ENDPOINT)


def file(made, path):
    return json.loads(made.files[f"{HOME}/{path}"])


@pytest.mark.parametrize("name", AGENTS)
def test_the_key_is_in_the_environment_or_a_file_and_never_in_the_arguments(name):
    made = launch(name)
    assert not any("hg-secret" in word for word in made.argv)
    assert any("hg-secret" in text for text in [*made.env.values(), *made.files.values()])
    assert "hg-secret" not in repr(made)


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_is_pointed_at_the_proxy_and_told_the_task(name):
    made = launch(name)
    assert any("http://127.0.0.1:8080" in text for text in [*made.env.values(), *made.files.values()])
    assert TASK.instruction in made.argv or made.stdin == TASK.instruction.encode()
    assert made.limits == TASK.limits


@pytest.mark.parametrize("name", AGENTS)
def test_the_home_is_in_the_workspace_and_its_files_too(name):
    made = launch(name)
    assert made.argv[:2] == ("sh", "-c")
    assert f'HOME="$PWD/{HOME}"' in made.argv[2]
    assert all(path.startswith(f"{HOME}/") for path in made.files)


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_is_installed_pinned_into_the_folder_it_is_started_from(name):
    harness = make(name, version="9.8.7")
    words = [word for step in harness.install() for word in step.argv]
    assert any(word.endswith(("@9.8.7", "==9.8.7")) for word in words)
    assert f"/opt/agents/{name}-9.8.7" in harness.launch(TASK, ENDPOINT).readable
    assert any(word.startswith(f"/opt/agents/{name}-9.8.7") for word in words)


@pytest.mark.parametrize("name", AGENTS)
def test_model_arguments_and_environment_can_be_set_and_nothing_unknown(name):
    made = launch(name, model="other", args=("--more",), env={"MORE": "1"})
    said = [*made.argv, *made.env.values(), *made.files.values()]
    assert any("other" in text for text in said)
    assert "--more" in made.argv
    assert made.env["MORE"] == "1"
    with pytest.raises(ValidationError):
        load("harness", name).settings(nonsense=1)


def test_agents_of_npm_share_one_node_and_run_their_own_install_script():
    first, second = make("qwen_code").install(), make("claude_code").install()
    assert first[0] == second[0]
    assert first[0].argv[-1] == f"node@{NODE}"
    assert second[-1].argv[1].endswith("@anthropic-ai/claude-code/install.cjs")
    assert launch("qwen_code").argv[3].endswith(f"node-{NODE}/node_modules/node/bin")


def test_codex_reads_its_provider_from_its_configuration():
    made = launch("codex", context_window=1_000, retries=0)
    config = tomllib.loads(made.files[f"{HOME}/.codex/config.toml"])
    provider = config["model_providers"][config["model_provider"]]
    assert (config["model"], config["model_context_window"]) == ("tiny", 1_000)
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8080/v1", "responses")
    assert made.env[provider["env_key"]] == "hg-secret"
    assert launch("codex", args=("--disable", "goals")).argv[-3:] == ("-", "--disable", "goals")


@pytest.mark.parametrize(
    ("protocol", "api", "url"),
    [
        ("chat", "openai-completions", "http://127.0.0.1:8080/v1"),
        ("responses", "openai-responses", "http://127.0.0.1:8080/v1"),
        ("messages", "anthropic-messages", "http://127.0.0.1:8080"),
    ],
)
def test_pi_speaks_each_protocol_at_its_address(protocol, api, url):
    provider = file(launch("pi", protocol=protocol), ".pi/agent/models.json")["providers"]["harnessgym"]
    assert (provider["api"], provider["baseUrl"], provider["apiKey"]) == (api, url, "hg-secret")


def test_pi_keeps_no_more_than_a_small_window_holds():
    kept = file(launch("pi", context_window=8_000, max_tokens=500), ".pi/agent/settings.json")["compaction"]
    assert kept == {"reserveTokens": 500, "keepRecentTokens": 2_000}


def test_opencode_asks_for_titles_under_a_name_that_its_rule_knows():
    harness = make("opencode")
    settings = file(harness.launch(TASK, ENDPOINT), ".config/opencode/opencode.json")
    provider, _, small = settings["small_model"].partition("/")
    assert small in settings["provider"][provider]["models"]
    assert harness.side_calls[0].model == small
    assert settings["model"] == f"{provider}/tiny"


def test_gemini_cli_compacts_at_a_share_of_the_window_it_believes_in():
    settings = file(launch("gemini_cli", context_window=131_072), ".gemini/settings.json")
    assert settings["model"]["compressionThreshold"] == pytest.approx(0.1)


def test_python_agents_can_read_their_program():
    for name in ("openai_agents", "deepagents"):
        made = launch(name)
        program = made.argv[made.argv.index("python") + 1]
        assert program in made.readable
    assert "--stream" in launch("openai_agents", stream=True).argv
    assert launch("deepagents", api="responses").argv[-1] == "responses"


def test_mini_swe_agent_takes_a_configuration_of_its_own():
    made = launch("mini_swe_agent", config="agent: {}\n")
    assert made.files == {f"{HOME}/mini.yaml": "agent: {}\n"}
    assert made.argv[made.argv.index("--config") + 1] == f"{HOME}/mini.yaml"
    assert "--config" not in launch("mini_swe_agent").argv


def test_what_a_forked_mini_swe_agent_no_longer_reads_is_refused():
    assert (
        launch("mini_swe_agent", env={"MSWEA_GLOBAL_CALL_LIMIT": "5"}).env["MSWEA_GLOBAL_CALL_LIMIT"] == "5"
    )
    with pytest.raises(ValueError, match="only as it loads"):
        launch("mini_swe_agent", env={"MSWEA_GLOBAL_CALL_LIMIT": "5"}, prewarm=True)


@pytest.mark.parametrize("inside", [False, True])
def test_mini_swe_agent_is_forked_as_it_is_started(inside):
    cold, forked = (
        launch("mini_swe_agent", prewarm=each, inside=inside, args=("--more",)) for each in (False, True)
    )
    assert (cold.prewarm, forked.prewarm.warm) == (None, "mini_swe_agent")
    assert forked.prewarm.python == "/opt/agents/mini_swe_agent-2.4.6/bin/python"
    assert forked.argv[:2] == (forked.prewarm.python, "/opt/agents/mini_swe_agent-2.4.6/bin/mini")
    assert forked.argv[2:] == cold.argv[cold.argv.index("mini") + 1 :]
    assert (forked.env, forked.files, forked.readable) == (cold.env, cold.files, cold.readable)
