"""`harnessgym eval`: the whole command, with real engines, proxies, sandboxes and harness programs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from environments.lookup import protocol
from harnessgym.process import ProcessId
from harnessgym.store import TraceStore
from harnessgym.traces.verification.verify import verify
from tests.harnessgym.evaluation.published import POLICY, published
from tests.harnessgym.rollout.tiny import HERE, write_harnesses
from tests.support.command import run_here
from tests.support.engine_process import EngineProcess

ROOT = Path(__file__).parents[3]
ENV = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "160"}


AGENT = """
import json, os, urllib.request
from protocol import MAX_TURNS, SYSTEM_PROMPT, TOOLS, Catalog

catalog = Catalog.from_json(open("catalog.json").read())
messages = [{"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": open("instruction.txt").read()}]
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}

def ask():
    body = json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

def result(name, arguments):
    try:
        return catalog.call(name, json.loads(arguments))
    except ValueError:
        return "unknown"

for _ in range(MAX_TURNS):
    messages.append(ask())
    if not messages[-1].get("tool_calls"):
        break
    for call in messages[-1]["tool_calls"]:
        text = result(call["function"]["name"], call["function"]["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
open("answer.txt", "w").write((messages[-1].get("content") or "").strip())
"""
"""An agent for the lookup tasks that imports nothing slow."""


def command(*words):
    return [sys.executable, "-m", "harnessgym", "eval", *map(str, words)]


def run(*words):
    """The command in this process, which has imported what it needs."""
    return run_here(["eval", *words])


def refused(*words):
    """What a command that is refused says, on one line."""
    done = run(*words)
    assert done.returncode == 2, done.stdout
    return " ".join(done.stderr.replace("│", "").split())


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def report(folder):
    return json.loads((folder / "eval.json").read_text())


@pytest.fixture
def scripted(tmp_path):
    """`scripted("first", "other")`: words that evaluate policies which always answer this, on tasks that
    want "first".
    """

    def make(*answers, folder="eval", **changes):
        (section,) = write_harnesses(tmp_path, ["good"])
        policies = []
        for number, answer in enumerate(answers):
            script = tmp_path / f"{number}.toml"
            script.write_text(f"answers = [{answer!r}]")
            policies.append(f"scripted:{script}")
        given = {"tasks": f"{HERE}:Picky", "sandbox": "process", "split": "train"} | changes
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        return [
            *policies,
            "--set",
            f"argv={json.dumps(section['settings']['argv'])}",
            "--folder",
            tmp_path / folder,
            *words,
        ]

    return make


@pytest.fixture
def ruined(tmp_path):
    with published(tmp_path / "run") as made:
        yield made


def test_before_and_after_of_a_run_interrupted_and_taken_up_again(ruined, tmp_path):
    """Version 2 of the run is ruined, and a chain of deltas."""
    run_folder, folder, agent = ruined.folder.root, tmp_path / "eval", tmp_path / "agent.py"
    agent.write_text(AGENT)
    shutil.copy(protocol.__file__, tmp_path)
    words = [f"{run_folder}@0", run_folder, "--tasks", "lookup", "--limit", "2", "--samples", "2", "--sandbox", "process",
             "--max-tokens", "24", "--max-length", "400", "--timeout", "60", "--folder", folder,
             "--set", f'argv=["python", "{agent}"]']  # fmt: skip
    with subprocess.Popen(
        command(*words, "-n", "1"), env=ENV, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 200
        lines = folder / "1-run@0" / "results.jsonl"
        while (
            time.monotonic() < deadline
            and process.poll() is None
            and not (lines.exists() and lines.read_text())
        ):
            time.sleep(0.05)
        (engine,) = [
            ProcessId(*entry) for entry in json.loads((folder / "processes.json").read_text()).values()
        ]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "goes on from here" in said
    assert "Traceback" not in said
    assert not engine.alive()
    kept = {row["rollout"] for row in results(lines.parent)}
    assert 1 <= len(kept) < 4
    ruined.publish()  # what is newest by now is not what the evaluation began with

    done = run(*words, "--require-gain")
    assert done.returncode == 1, done.stderr
    assert "no improvement is shown" in done.stderr
    assert "2-run@2" in done.stdout
    assert kept <= {row["rollout"] for row in results(lines.parent)}
    before, after = results(folder / "1-run@0"), results(folder / "2-run@2")
    assert [(row["task"], row["slot"], row["seed"]) for row in before] == [
        (row["task"], row["slot"], row["seed"]) for row in after
    ]
    assert len(before) == 4
    told = report(folder)
    first, last = told["policies"]
    assert (first["version"], last["version"]) == (0, 2)
    assert first["graded"] == last["graded"] == 4
    assert first["reward"]["mean"] == pytest.approx(sum(row["reward"] for row in before) / 4, abs=1e-3)
    assert first["pass@2"]["tasks"] == 2
    assert last["reward"]["mean"] == 0.0
    (compared,) = told["comparisons"]
    assert compared["difference"]["mean"] == pytest.approx(-first["reward"]["mean"])
    assert (compared["tasks"], compared["left_out"], compared["better"]) == (2, 0, 0)
    for name in ("1-run@0", "2-run@2"):
        with TraceStore.open(f"sqlite:///{folder / name / 'traces.db'}") as store:
            assert verify(store).ok


def test_a_better_policy_is_shown_and_the_finished_evaluation_is_only_told_again(scripted, tmp_path):
    words = scripted("other", "first", samples=2, limit=3)
    done = run(*words, "--require-gain")
    assert done.returncode == 0, done.stderr
    assert "+1.000 [+1.000, +1.000]" in done.stdout
    assert "3, 0, 0 tasks" in done.stdout
    assert "Intervals over 3 tasks are narrower" in done.stdout
    told = report(tmp_path / "eval")
    assert [each["pass@2"]["mean"] for each in told["policies"]] == [0.0, 1.0]
    assert told["comparisons"][0]["verdict"] == "better"
    again = run(*words, "-n", "2")
    assert again.returncode == 0, again.stderr
    assert "Policy 1 of 2" not in again.stderr
    assert again.stdout == done.stdout
    other = run(*words, "--seed", "3")
    assert other.returncode == 2
    assert "holds another evaluation: seed was 0 and is 3" in other.stderr


def test_an_evaluation_that_could_not_begin_leaves_its_folder_free(scripted, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(POLICY, broken)
    (broken / "model.safetensors").write_bytes(b"")
    words = scripted("first", limit=1)
    failed = run(broken, *words[1:])
    assert failed.returncode == 2
    assert f"The engine cannot serve this model: The weights at {broken}/model.safetensors" in failed.stderr
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert len(report(tmp_path / "eval")["policies"]) == 1
    assert report(tmp_path / "eval")["comparisons"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere", "--tasks", "lookup", "--set", 'argv=["a"]'], "There is no folder"),
        ([POLICY], "give --tasks SPEC, or --run RUN.toml"),
        ([POLICY, "--tasks", "lookup", "--require-gain"], "give two policies"),
        (
            [POLICY, "--run", "examples/quickstart.toml", "--harness", "open"],
            "no harness 'open'. Did you mean 'openai'",
        ),
        ([POLICY, "--tasks", "nothing"], "There are no tasks 'nothing'"),
        ([POLICY, "--tasks", "lookup"], "argv"),
        (["http://127.0.0.1:9", "--tasks", "lookup", "--set", 'argv=["a"]'], "Is it up?"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_words_and_nothing_is_left(words, told, tmp_path):
    assert told in refused(*words, "--folder", tmp_path / "eval")
    assert not (tmp_path / "eval").exists()


def test_tasks_without_the_split_are_told_with_those_that_they_have(tmp_path):
    task = tmp_path / "tasks" / "one"
    task.mkdir(parents=True)
    (task / "task.toml").write_text('split = "train"\n[[tests]]\nkind = "command"\n')
    (task / "instruction.md").write_text("Do.")
    (task / "tests").mkdir()
    (task / "tests" / "run.sh").write_text("true")
    said = refused(POLICY, "--tasks", task.parent, "--set", 'argv=["a"]', "--folder", tmp_path / "eval")
    assert "none in the split 'test'. There are 1 in 'train'. Give another --split." in said


def test_the_folder_of_something_else_is_left_alone(scripted, tmp_path):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "notes.txt").touch()
    assert "already has other content" in refused(*scripted("first"))
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["notes.txt"]


def test_an_engine_that_is_stopped_in_the_middle_costs_grades_and_no_points(tmp_path):
    (section,) = write_harnesses(tmp_path, ["lists"])
    words = ["--set", f"argv={json.dumps(section['settings']['argv'])}", "--tasks", f"{HERE}:Tiny", "--sandbox", "process",
             "--split", "train", "--limit", "2", "-n", "1", "--timeout", "8", "--retry", "0", "--max-tokens", "4",
             "--folder", tmp_path / "eval"]  # fmt: skip
    with EngineProcess(answers=1) as engine:
        done = run(engine.address, *words)
    assert done.returncode == 0, done.stderr
    (folder,) = [path.parent for path in (tmp_path / "eval").glob("*/results.jsonl")]
    told = Counter((row["reward"], row["verdict"], row["cause"]) for row in results(folder))
    assert told == {(1.0, "valid", None): 1, (None, "infrastructure_error", "engine_silent"): 1}
    (found,) = report(tmp_path / "eval")["policies"]
    assert (found["reward"]["mean"], found["graded"], found["not_graded"]) == (1.0, 1, 1)
    assert found["not_graded_because"] == {"engine_silent": 1}
    assert "not graded" in done.stdout
    assert "1: 1 engine_silent" in done.stdout
