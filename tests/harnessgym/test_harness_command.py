"""The command harness: templates, keys, programs."""

import pytest
from pydantic import ValidationError

from harnessgym.errors import CapabilityError, HarnessError
from harnessgym.harness import Endpoint
from harnessgym.harnesses.command import CommandConfig, CommandHarness
from harnessgym.sandbox import Capability, Prewarm, needs, require
from harnessgym.task import Limits, Task
from harnessgym.wrapping.wrap import surroundings_of

TASK = Task("t/1", 'Do {this} "now".', limits=Limits(wall_s=3))
ENDPOINT = Endpoint("http://127.0.0.1:8080", "hg-secret", "tiny", seed=11)


def launch(**config):
    return CommandHarness(CommandConfig(**config)).launch(TASK, ENDPOINT)


def test_defaults_point_every_sdk_at_the_proxy_and_lay_out_the_instruction():
    made = launch(argv=("agent", "--task", "{instruction}", "--model", "{model}"))
    assert made.argv == ("agent", "--task", 'Do {this} "now".', "--model", "tiny")
    assert made.env == surroundings_of(["agent"], ENDPOINT, None).env
    assert made.env["OPENAI_BASE_URL"] == "http://127.0.0.1:8080/v1"
    assert made.env["GOOGLE_GEMINI_BASE_URL"] == made.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert made.env["OPENAI_MODEL"] == made.env["ANTHROPIC_MODEL"] == "tiny"
    assert made.files == {"instruction.txt": TASK.instruction}
    assert (made.stdin, made.prewarm, made.readable, made.limits) == (None, None, (), TASK.limits)


def test_env_adds_to_and_overrides_the_providers():
    made = launch(
        argv=("a", "{seed}"), env={"X": "{task}", "OPENAI_API_KEY": "p-{key}"}, stdin="{instruction}"
    )
    assert made.argv == ("a", "11")
    assert made.env["X"] == "t/1"
    assert made.env["OPENAI_API_KEY"] == "p-hg-secret"
    assert made.stdin == TASK.instruction.encode()


def test_a_python_program_becomes_absolute_and_readable(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text("")
    monkeypatch.chdir(tmp_path)
    made = launch(argv=("python", "agent.py", "x"), prewarm=True, warm="openai")
    program = str(tmp_path / "agent.py")
    assert made.argv == ("python", program, "x")
    assert made.readable == (program,)
    assert made.prewarm == Prewarm("openai")


def test_another_interpreter_brings_its_prefix(tmp_path):
    (tmp_path / "agent.py").write_text("")
    made = launch(argv=("python", str(tmp_path / "agent.py")), python="/opt/agent/bin/python", prewarm=True)
    assert made.argv[0] == "/opt/agent/bin/python"
    assert "/opt/agent" in made.readable
    assert made.prewarm == Prewarm("", "/opt/agent/bin/python")
    assert launch(argv=("/opt/agent/bin/python", str(tmp_path / "agent.py")), prewarm=True) == made
    assert launch(argv=("python", "-m", "agent"), prewarm=True).argv == ("python", "-m", "agent")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"argv": ("agent", "--key={key}")}, "every process"),
        ({"argv": ("agent", "{ulr}")}, "'ulr'"),
        ({"argv": ("agent", "{")}, "literal brace"),
        ({"argv": ("agent", "{0}")}, "known are"),
        ({"argv": ("python", "/no/such/agent.py")}, "no harness program"),
        ({"argv": ("node", "agent.js"), "prewarm": True}, "Only a `python"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_remedy(config, message):
    with pytest.raises(HarnessError, match=message):
        launch(**config)


def test_unknown_settings_are_refused():
    with pytest.raises(ValidationError):
        CommandConfig(argv=("a",), prewarmed=True)
    with pytest.raises(ValidationError):
        CommandConfig(argv=())


def test_keys_stay_out_of_representations():
    made = launch(argv=("a",))
    assert "hg-secret" not in repr(made)
    assert "hg-secret" not in repr(ENDPOINT)


def test_endpoints_know_each_protocol_s_base():
    assert (ENDPOINT.openai_url, ENDPOINT.anthropic_url, ENDPOINT.gemini_url) == (
        "http://127.0.0.1:8080/v1",
        "http://127.0.0.1:8080",
        "http://127.0.0.1:8080",
    )


def test_a_task_that_needs_an_image_is_refused_where_there_are_none():
    require(frozenset(), needs(TASK))
    with pytest.raises(CapabilityError, match="image"):
        require(frozenset({Capability.FILES}), needs(Task("t", "i", image="debian")))
