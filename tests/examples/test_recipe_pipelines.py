"""The recipes that are pipelines of commands, DPO and a teacher: each script runs as it stands, with a tiny random model and
the few variables that each test sets.

    HARNESSGYM_REQUIRE=bubblewrap,agents,collector pytest tests/examples/test_recipe_pipelines.py
"""

import difflib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, STDOUT

import httpx
import pytest
import tomli_w
from safetensors.torch import load_file

from environments.swe import SweTasks
from harnessgym.task import Grade
from tests.examples.test_recipe_runs import REQUIRED, skip_without_agent
from tests.harnessgym.rollout.tiny import Patient
from tests.proxies.npm_tokenizer import qwen3_folder
from tests.support.tiny_folders import tiny_folder

pytestmark = [pytest.mark.bubblewrap, pytest.mark.agents, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
COLLECTOR = Path.home() / ".cache/harnessgym/litellm/bin/harnessgym"
"""litellm's own environment, which CI makes."""
HERE = "tests.examples.test_recipe_pipelines"


class ByChance(Patient):
    """One task, whose attempts get rewards that differ whatever was done: a random model solves nothing."""

    def tasks(self, split):
        return [replace(task, grader=f"{HERE}:grade") for task in super().tasks(split)[:1]]


def grade(task, workspace):
    return Grade({"reward": zlib.crc32(str(workspace).encode()) / 2**32})


@pytest.fixture
def model(tmp_path):
    """The folder of a tiny Qwen3."""
    skip_without_agent("mini_swe_agent")
    qwen3_folder()
    return tiny_folder(tmp_path / "model", "qwen3", "qwen3.jinja")


@contextmanager
def engine_of(model):
    """The address of an engine that serves it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [
        sys.executable,
        "-m",
        "harnessgym",
        "engine",
        str(model),
        "--port",
        str(port),
        "--max_length",
        "8192",
    ]
    process = subprocess.Popen(argv, cwd=ROOT)
    try:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60.0
        while not answers(address):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def answers(address):
    """Whether an engine is up."""
    try:
        return httpx.get(f"{address}/health", trust_env=False, timeout=5.0).is_success
    except httpx.HTTPError:
        return False


def run(argv, **variables):
    """Run a script, as it stands, with these variables."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = (
        os.environ
        | {"PATH": path, "PYTHONPATH": str(ROOT)}
        | {name: str(each) for name, each in variables.items()}
    )
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its commands too
            raise
    assert process.returncode == 0, said
    return said


def changed(before, after):
    """Whether a folder has other weights than the one that training began with, under the same names."""
    one, other = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert {name for name in other if "lm_head" not in name} == {
        name for name in one if "lm_head" not in name
    }
    return any((one[name] != tensor).any() for name, tensor in other.items() if name in one)


def test_preferences(model, tmp_path):
    script, folder = "examples/recipes/qwen3_1_7b_dpo.sh", tmp_path / "run"
    small = {"MODEL": model, "FOLDER": folder, "TASKS": f"{HERE}:ByChance", "SAMPLES": 2, "MAX_TOKENS": 12}
    with engine_of(model) as address:
        run(["bash", script, "collect"], ENGINE=address, **small)
    assert json.loads((folder / "summary.json").read_text())["graded"] == 2
    said = run(["bash", script, "train", "--set", "bf16=false"], **small)
    assert "examples (dpo) of 2 rollouts" in said
    assert changed(model, folder / "model")


def teacher_of(task):
    """A script of two attempts at a task: one repairs it, one gives up."""
    ((name, right),) = task.solution.files.items()
    lines = task.files[name].splitlines(True)
    edits = [
        f"lines[{i}:{j}] = {right.splitlines(True)[k:m]!r}"
        for kind, i, j, k, m in difflib.SequenceMatcher(None, lines, right.splitlines(True)).get_opcodes()
        if kind != "equal"
    ]
    program = "; ".join(
        [
            f"lines = open({name!r}).read().splitlines(True)",
            *reversed(edits),
            f"open({name!r}, 'w').writelines(lines)",
        ]
    )
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    commands = (f"python3 -c {shlex.quote(program)}", done, done)
    answers = [
        {"text": "Now.", "tool_call": {"name": "bash", "arguments": {"command": each}}} for each in commands
    ]
    return tomli_w.dumps({"answers": answers})


@pytest.mark.skipif(
    not COLLECTOR.exists() and "collector" not in REQUIRED,
    reason=f"litellm has no environment at {COLLECTOR}",
)
def test_a_teacher(model, tmp_path):
    """The teacher is a script behind the proxy; the proxy of the recipe reaches it through litellm."""
    script, folder = "examples/recipes/qwen3_1_7b_from_teacher.sh", tmp_path / "run"
    (tmp_path / "teacher.toml").write_text(teacher_of(SweTasks().tasks("train")[0]))
    teacher = "litellm:openai/teacher?api_key_env=OPENAI_API_KEY&api_base="
    argv = [
        "harnessgym",
        "wrap",
        "--folder",
        str(tmp_path / "teacher"),
        "--upstream",
        f"scripted:{tmp_path}/teacher.toml",
        "--",
    ]
    argv += ["sh", "-c", f'TEACHER="{teacher}$OPENAI_BASE_URL" exec bash {script}']
    small = {"MODEL": model, "FOLDER": folder, "COLLECTOR": COLLECTOR, "TASKS": 1, "SAMPLES": 2, "AT_ONCE": 1}
    said = run(argv, **small)
    rewards = [json.loads(line)["reward"] for line in (folder / "results.jsonl").read_text().splitlines()]
    assert sorted(rewards) == [0.0, 1.0]
    (record,) = map(json.loads, (folder / "solved.jsonl").read_text().splitlines())
    assert record["loss_mask"] == [int(message["role"] == "assistant") for message in record["messages"]]
    assert sum(record["loss_mask"]) == 2
    assert "1 of 1 conversations" in said
    assert changed(model, folder / "model")
