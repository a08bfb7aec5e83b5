"""The first agent of one's own: its tools, and the whole of it on a shipped task with a scripted model."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments.shell_tasks import ShellTasks

AGENT = Path(__file__).parents[2] / "examples" / "shell_agent.py"
TASK = next(task for task in ShellTasks().tasks("train") if task.id == "shell/free-slots")
GOLD = TASK.solution.files["calendar_slots.py"]


@pytest.fixture
def agent():
    spec = importlib.util.spec_from_file_location("shell_agent", AGENT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_a_command_says_what_it_says_and_how_it_ended(agent):
    assert (
        agent.call_tool("shell", json.dumps({"command": "echo out; echo err >&2; exit 3"}))
        == "out\nerr\n\n[exit code 3]"
    )


def test_of_long_output_both_ends_are_shown(agent):
    said = agent.shell("echo first; seq 1 100000; echo last")
    assert len(said) < agent.SHOWN + 50
    assert said.startswith("first")
    assert "last" in said


def test_an_edit_replaces_the_one_place(agent, tmp_path):
    file = tmp_path / "new" / "a.txt"
    assert agent.edit(str(file), "", "one two one").startswith("wrote")
    assert agent.edit(str(file), "two", "2").startswith("wrote")
    assert file.read_text() == "one 2 one"
    assert "2 times" in agent.edit(str(file), "one", "1")
    assert file.read_text() == "one 2 one"


@pytest.mark.parametrize(
    "call",
    [("nothing", "{}"), ("shell", "{"), ("shell", "{}"), ("edit", '{"path": "no", "old": "x", "new": ""}')],
)
def test_what_goes_wrong_is_for_the_model_to_read(agent, call):
    assert agent.call_tool(*call).startswith("error: ")


def test_the_tools_offered_are_those_there_are(agent):
    assert {spec["function"]["name"] for spec in agent.SPECS} == set(agent.TOOLS)
    assert all(spec["function"]["description"] for spec in agent.SPECS)


def toml(value):
    """Inline TOML of what a script holds; JSON strings are TOML strings."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


@pytest.mark.bubblewrap
def test_it_solves_a_shipped_task_when_the_model_does(tmp_path):
    old = TASK.files["calendar_slots.py"]
    answers = [
        {"tool_call": {"name": "shell", "arguments": {"command": "ls"}}},
        {"tool_call": {"name": "edit", "arguments": {"path": "calendar_slots.py", "old": old, "new": GOLD}}},
        {"text": "Done."},
    ]
    script = tmp_path / "script.toml"
    script.write_text("answers = [\n" + "".join(f"    {toml(answer)},\n" for answer in answers) + "]\n")
    words = [
        "rollout",
        "--folder",
        str(tmp_path / "run"),
        "--tasks",
        "tests.examples.test_shell_agent:FreeSlots",
    ]
    words += ["--set", f"argv={json.dumps(['python', str(AGENT)])}", "--upstream", f"scripted:{script}"]
    done = subprocess.run(
        [sys.executable, "-m", "harnessgym", *words],
        cwd=AGENT.parents[1],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["graded"], summary["reward"]["mean"]) == (1, 1.0)


class FreeSlots:
    """The one task that the script plays."""

    name = "shell"

    def tasks(self, split):
        """It alone."""
        return [TASK] if split == "train" else []
