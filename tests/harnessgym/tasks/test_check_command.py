"""`harnessgym tasks check`: what is found of good tasks and of bad ones, and that an interrupted check
goes on.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest

from harnessgym.sandboxes.docker import DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from tests.harnessgym.tasks.conftest import ENV, ONE, ROOT, write_task
from tests.harnessgym.tasks.sets import FOLDER, HERE

pytestmark = pytest.mark.bubblewrap


def by_name(done):
    """The JSON rows by the last part of the task's id."""
    assert done.returncode in (0, 1), done.stderr
    return {row["id"].rpartition("/")[2]: row for row in json.loads(done.stdout)["tasks"]}


def test_every_kind_of_fault_is_told_apart(harnessgym, here, mixed):
    done = harnessgym("tasks", "check", mixed, "--cheats", "quick", "--repeats", "2", "--json")
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    rows = by_name(done)
    assert {name: row["state"] for name, row in rows.items()} == {
        "good": "passed",
        "broken": "failed",
        "free": "failed",
        "cheatable": "failed",
        "unsolved": "no solution",
        "contained": "skipped",
    }
    assert said["ok"] is False
    assert (rows["good"]["gold"], rows["good"]["nothing"], rows["good"]["flake_rate"]) == (
        [1.0, 1.0],
        0.0,
        0.0,
    )
    assert "never rewarded (2 runs): scored 0" in rows["broken"]["why"][0]
    assert rows["free"]["why"] == ["Doing nothing scored 1"]
    assert rows["free"]["cheats"] == {}
    assert rows["cheatable"]["why"] == ["The cheat reward-files-inside scored 1"]
    assert rows["cheatable"]["cheats"]["reward-files-inside"] == "got something"
    assert (rows["unsolved"]["gold"], rows["unsolved"]["nothing"], rows["unsolved"]["flake_rate"]) == (
        [],
        0.0,
        None,
    )
    assert "lacks image" in rows["contained"]["why"][0]
    assert len(said["problems"]) == 1
    assert "malformed/task.toml" in said["problems"][0]
    stored = json.loads((mixed / "baseline.json").read_text())["tasks"]
    assert sorted(stored) == [f"mixed/{name}" for name in ("broken", "cheatable", "free", "good", "unsolved")]
    again = here("tasks", "check", mixed, "--cheats", "quick", "--repeats", "2")
    assert again.returncode == 1
    assert "The cheat reward-files-inside scored 1" in again.stdout
    assert "1 passed" in again.stdout
    assert "malformed/task.toml" in again.stderr
    assert json.loads((mixed / "baseline.json").read_text())["tasks"] == stored


def test_a_set_without_a_fault_passes_and_is_not_run_twice(here, tmp_path):
    assert (
        here("tasks", "check", f"{HERE}:Counted", "--sandbox", "process", "--cheats", "none").returncode == 0
    )
    assert (tmp_path / "counted-a").read_text() == "xxx"
    second = here("tasks", "check", f"{HERE}:Counted", "--sandbox", "process", "--cheats", "none", "--json")
    assert [row["ran"] for row in json.loads(second.stdout)["tasks"]] == [0, 0]
    more = here(
        "tasks",
        "check",
        f"{HERE}:Counted",
        "--sandbox",
        "process",
        "--cheats",
        "none",
        "--repeats",
        "4",
        "--task",
        "a",
        "--json",
    )
    assert by_name(more)["a"]["gold"] == [1.0] * 4
    assert (tmp_path / "counted-a").read_text() == "xxxx"
    forced = here(
        "tasks",
        "check",
        f"{HERE}:Counted",
        "--sandbox",
        "process",
        "--cheats",
        "none",
        "--again",
        "--task",
        "a",
    )
    assert forced.returncode == 0
    assert (tmp_path / "counted-a").read_text() == "xxxxxxx"
    assert (tmp_path / "counted-b").read_text() == "xxx"


def test_a_task_that_changed_is_unchecked(here, tmp_path):
    root = tmp_path / "set"
    where = write_task(root, "one")
    write_task(root, "two")
    assert (
        here("tasks", "check", root, "--sandbox", "process", "--cheats", "none", "--repeats", "1").returncode
        == 0
    )
    (where / "task.toml").write_text(ONE.replace("1\\n", "2\\n"))
    listed = json.loads(here("tasks", "list", root, "--json").stdout)
    assert [row["baseline"] for row in listed["tasks"]] == ["changed", "passed"]
    done = here(
        "tasks", "check", root, "--sandbox", "process", "--cheats", "none", "--repeats", "1", "--json"
    )
    assert {name: (row["state"], row["ran"] > 0) for name, row in by_name(done).items()} == {
        "one": ("failed", True),
        "two": ("passed", False),
    }


def test_a_flaky_solution_fails_and_is_called_flaky(here):
    done = here("tasks", "check", f"{HERE}:Flaky", "--sandbox", "process", "--cheats", "none", "--json")
    row = by_name(done)["shaky"]
    assert done.returncode == 1
    assert (row["state"], row["gold"], row["expected_flaky"]) == ("failed", [1.0, 0.0, 1.0], True)
    assert row["flake_rate"] == pytest.approx(1 / 3)
    assert row["why"] == ["The solution was rewarded in 2 of 3 runs: scored 0"]


def test_a_sandbox_that_fails_is_no_answer_and_gets_a_second_chance(here, tmp_path):
    done = here(
        "tasks",
        "check",
        f"{HERE}:Losing",
        "--sandbox",
        "process",
        "--cheats",
        "none",
        "--repeats",
        "1",
        "--json",
    )
    rows = by_name(done)
    assert done.returncode == 1
    assert rows["back"]["state"] == "passed"
    assert rows["gone"]["state"] == "no answer"
    assert "The machine is tired" in rows["gone"]["why"][0]
    assert list(json.loads((tmp_path / "baseline.json").read_text())["tasks"]) == ["counted/back"]


def test_a_grader_with_a_bug_is_a_task_that_failed(here):
    done = here("tasks", "check", f"{HERE}:Sulking", "--sandbox", "process", "--cheats", "none", "--json")
    row = by_name(done)["sad"]
    assert (row["state"], row["gold"], row["nothing"]) == ("failed", ["error"] * 3, "error")
    assert "ZeroDivisionError" in row["why"][0]


@pytest.mark.parametrize("deaf", [False, True], ids=["foreground", "background"])
def test_an_interrupted_check_keeps_what_it_found_and_goes_on(here, tmp_path, deaf):
    root = tmp_path / "set"
    write_task(root, "a-first")
    write_task(root, "b-slow", gold="sleep 600; echo 1 > a.txt\n")
    words = [
        "tasks",
        "check",
        str(root),
        "--sandbox",
        "process",
        "--cheats",
        "none",
        "--repeats",
        "1",
        "--jobs",
        "1",
    ]
    command = [
        "env",
        f"--{'ignore' if deaf else 'default'}-signal=INT",
        sys.executable,
        "-m",
        "harnessgym",
        *words,
    ]
    with subprocess.Popen(
        command, env=ENV | {FOLDER: str(tmp_path)}, stderr=subprocess.PIPE, text=True
    ) as running:
        deadline = time.monotonic() + 120
        while (
            not (root / "baseline.json").exists() and time.monotonic() < deadline and running.poll() is None
        ):
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 130, said
    assert "The same command goes on from here" in said
    assert list(json.loads((root / "baseline.json").read_text())["tasks"]) == ["set/a-first"]
    (root / "b-slow" / "gold.sh").write_text("echo 1 > a.txt\n")
    done = here(*words, "--json")
    assert {name: row["ran"] for name, row in by_name(done).items()} == {"a-first": 0, "b-slow": 2}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "There are no tasks 'nowhere'"),
        (["shell", "--sandbox", "nothing"], "There is no sandbox named 'nothing'"),
        (
            ["shell", "--task", "free-slotz"],
            "There is no task 'free-slotz'. Did you mean 'shell/free-slots'?",
        ),
        (
            [f"{HERE}:Counted", "--sandbox", "process", "--cheats", "quick"],
            "does not offer files, network, processes",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_message(here, words, says):
    done = here("tasks", "check", *words)
    assert done.returncode == 2
    assert says in done.stderr


def test_the_task_of_the_guide_passes(here, tmp_path):
    page = (ROOT / "docs" / "tasks.md").read_text()
    for path, text in re.findall(r"^`(my_tasks/\S+)`:\n\n```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = here("tasks", "check", tmp_path / "my_tasks", "--repeats", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.docker
def test_a_task_whose_image_is_not_there_is_skipped(here, tmp_path):
    ensure(DockerSettings().image, ())
    write_task(tmp_path / "set", "one")
    write_task(tmp_path / "set", "two", toml='image = "harnessgym/no-such:1"\n' + ONE)
    done = here(
        "tasks",
        "check",
        tmp_path / "set",
        "--sandbox",
        "docker",
        "--cheats",
        "none",
        "--repeats",
        "1",
        "--json",
    )
    rows = by_name(done)
    assert done.returncode == 0, done.stderr
    assert {name: row["state"] for name, row in rows.items()} == {"one": "passed", "two": "skipped"}
    assert "'harnessgym/no-such:1' is not on the Docker engine" in rows["two"]["why"][0]


def test_a_solution_that_lies_on_the_machine_fails_its_task_unless_it_is_hidden(here, tmp_path):
    # Every sandbox shows the standard library, of which nothing needs this module.
    text = Path(wave.__file__).read_text()
    write_task(tmp_path / "set", "known", gold=None, files={"gold/wave.py": text, "gold/a.txt": "1\n"})
    words = ("tasks", "check", tmp_path / "set", "--cheats", "none", "--repeats", "1", "--json")
    leaky = here(*words)
    (row,) = by_name(leaky).values()
    assert (leaky.returncode, row["state"], row["gold"], row["nothing"]) == (1, "failed", [1.0], 0.0)
    assert "It can be read in an agent's sandbox: " in row["why"][0]
    assert f" {wave.__file__} has " in row["why"][0]
    copies = re.findall(r"(/\S+) has \d+ of", row["why"][0])
    hidden = here(*words, *(word for path in copies for word in ("--hidden", path)))
    (row,) = by_name(hidden).values()
    assert (hidden.returncode, row["state"], row["ran"]) == (0, "passed", 0)


def test_a_second_opinion_that_a_task_cannot_have_is_named_and_fails_only_who_asks_for_it(here, tmp_path):
    write_task(tmp_path / "set", "one")
    words = ("tasks", "check", tmp_path / "set", "--sandbox", "process", "--cheats", "none", "--repeats", "1")
    asked = here(*words, "--second-opinion", "--seeds", "1", "--json")
    row = by_name(asked)["one"]
    assert (asked.returncode, row["state"], row["why"]) == (1, "passed", [])
    assert row["by_value"].endswith("cannot be judged by value: The solution changes no Python function.")
    assert (row["integrity"], row["fewest_differences"]) == ("by_value", None)
    shown = here(*words, "--second-opinion")
    assert "set/one: no second opinion: Task 'set/one' cannot be judged by value" in shown.stdout
    plain = here(*words, "--json")
    assert (plain.returncode, by_name(plain)["one"]["ran"]) == (0, 0)
    (listed,) = json.loads(here("tasks", "list", tmp_path / "set", "--json").stdout)["tasks"]
    assert (listed["integrity"], listed["by_value"]) == ("by_value", row["by_value"])
    assert "cannot be judged by value" in here("tasks", "show", tmp_path / "set", "one").stdout
