"""`harnessgym tasks list | show | run | convert`, and that what failed is not trained on and not rolled
out.
"""

import json
import os
import pty
import subprocess
import sys

import pytest

from harnessgym.cli.tasks.run import Lines
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits
from harnessgym.tasks.payload import payload_of
from harnessgym.tasks.source import all_tasks, task_set
from harnessgym.validation.baseline import Baseline, BaselineEntry, digest_of
from tests.harnessgym.rollout.tiny import write_harnesses
from tests.harnessgym.tasks.conftest import ENV, ONE, write_task
from tests.harnessgym.tasks.sets import HERE


@pytest.fixture
def small(tmp_path):
    """A good task and one that failed when it was checked, with the baseline that says so."""
    root = tmp_path / "small"
    write_task(root, "good")
    write_task(root, "bad", gold="echo 2 > a.txt\n")
    write_task(root, "unknown", toml='split = "test"\n' + ONE)
    tasks = {task.id: task for task in all_tasks(task_set(str(root)))}
    book = Baseline(root / "baseline.json")
    good, bad = tasks["small/good"], tasks["small/bad"]
    book.put(
        good.id,
        BaselineEntry(digest=digest_of(good), state="passed", sandbox="process", gold=(1.0,), nothing=0.0),
    )
    problems = {"gold": "The solution was never rewarded (1 runs): scored 0"}
    book.put(
        bad.id,
        BaselineEntry(
            digest=digest_of(bad),
            state="failed",
            problems=problems,
            sandbox="process",
            gold=(0.0,),
            nothing=0.0,
        ),
    )
    book.flush()
    return root


def test_what_is_registered_is_listed(here):
    done = here("tasks", "list")
    assert done.returncode == 0
    for word in ("shell", "lookup", "environments.shell_tasks:ShellTasks", "native", "yes"):
        assert word in done.stdout
    said = json.loads(here("tasks", "list", "--json").stdout)
    assert {row["name"]: (row["train"], row["test"]) for row in said["sets"]}["shell"] == (10, 2)
    assert {row["name"]: row["written"] for row in said["formats"]}["native"] is True


def test_the_tasks_of_a_set_are_listed_with_what_is_known_and_what_is_wrong(here, small):
    write_task(small, "malformed", toml="score = 3\n" + ONE)
    done = here("tasks", "list", small)
    assert done.returncode == 0
    assert "failed: The solution was never rewarded" in done.stdout
    assert "unchecked" in done.stdout
    assert "malformed/task.toml" in done.stderr
    said = json.loads(here("tasks", "list", small, "--json").stdout)
    assert [(row["id"], row["split"], row["judge"], row["baseline"]) for row in said["tasks"]] == [
        ("small/bad", "train", "files", "failed"),
        ("small/good", "train", "files", "passed"),
        ("small/unknown", "test", "files", "unchecked"),
    ]
    assert "malformed/task.toml" in said["problems"][0]


def test_show_tells_what_is_seen_from_what_is_secret(here, small):
    done = here("tasks", "show", small, "bad")
    seen, secret, judged = done.stdout.partition("Secret: what judges it")
    assert secret
    assert "Write 1 into a.txt." in seen
    assert "files" in judged
    assert "never rewarded" in judged
    assert "echo 2" not in done.stdout
    assert "echo 2 > a.txt" in here("tasks", "show", small, "small/bad", "--gold").stdout
    said = json.loads(here("tasks", "show", small, "bad", "--json").stdout)
    assert said["task"]["solution"] is None
    assert {"metadata", "solution", "grader"} <= set(said["secret"])
    assert json.loads(here("tasks", "show", small, "bad", "--json", "--gold").stdout)["task"]["solution"][
        "run"
    ]


def test_run_grades_what_a_command_leaves(harnessgym, here, small):
    def verdict(run, *words):
        done = run("tasks", "run", small, "good", "--sandbox", "process", "--json", *words)
        return done.returncode, json.loads(done.stdout)

    status, said = verdict(harnessgym, "--", "sh", "-c", "echo 1 > a.txt; echo done")
    assert (status, said["reward"], said["output"]) == (0, 1.0, "done\n")
    assert said["evidence"]["checks"][0]["passed"] is True
    status, said = verdict(here, "--nothing")
    assert (status, said["reward"]) == (1, 0.0)
    shown = here(
        "tasks",
        "run",
        small,
        "good",
        "--sandbox",
        "process",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    )
    assert shown.returncode == 1
    assert "out\n" in shown.stdout
    assert "reward 0" in shown.stdout
    assert "err\n[exit status 3]\n" in shown.stderr
    assert "reward 1" in here("tasks", "run", small, "good", "--sandbox", "process", "--gold").stdout
    neither = here("tasks", "run", small, "good", "--gold", "--nothing")
    assert (neither.returncode, "Say what to run" in neither.stderr) == (2, True)


@pytest.mark.anyio
async def test_lines_are_run_one_by_one_and_keep_the_folder(tmp_path, capfd):
    typed = iter(
        [
            "mkdir -p 'a b' && cd 'a b'",
            "",
            "printf 'no newline'",
            "echo x > y; cat y; false",
            "cd /nowhere",
            "exit",
        ]
    )
    asked = []

    def read(prompt):
        asked.append(prompt)
        return next(typed)

    lines = Lines(30.0, read)
    async with (
        ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend,
        backend.open(Limits()) as sandbox,
    ):
        await lines(sandbox)
        assert await sandbox.read("a b/y") == b"x\n"
    shown = capfd.readouterr()
    assert asked[1:] == ["a b$ "] * 5
    assert shown.out == "no newline\nx\n"
    assert "[exit status 1]" in shown.err
    assert lines.output.startswith(b"no newlinex\n")


def test_a_terminal_without_a_command_is_a_shell(small):
    main, side = pty.openpty()
    words = [sys.executable, "-m", "harnessgym", "tasks", "run", str(small), "good", "--sandbox", "process"]
    with subprocess.Popen(
        words, stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True
    ) as running:
        os.write(main, b"echo 1 > a.txt\nexit\n")
        out, said = running.communicate(timeout=120)
    os.close(main)
    os.close(side)
    assert running.returncode == 0, said
    assert "reward 1" in out


def test_native_tasks_survive_being_written_and_read(here, tmp_path):
    out = tmp_path / "copy"
    done = here("tasks", "convert", "shell", out, "--to", "native", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["written"]) == 12
    copies = {task.id.rpartition("/")[2]: payload_of(task) for task in all_tasks(task_set(str(out)))}
    for task in all_tasks(task_set("shell")):
        copy = copies.pop(task.id.rpartition("/")[2])
        assert copy | {"id": task.id} == payload_of(task)
    assert copies == {}
    full = here("tasks", "convert", "shell", out, "--to", "native")
    assert (full.returncode, "is not an empty folder" in full.stderr) == (2, True)
    more = here("tasks", "convert", "shell", out, "--to", "native", "--add", "--limit", "1")
    assert (more.returncode, "is there already" in more.stderr) == (1, True)


def test_what_a_format_cannot_say_is_refused_with_the_reason(here, tmp_path):
    done = here("tasks", "convert", f"{HERE}:Counted", tmp_path / "out", "--to", "native", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert [row["task"] for row in said["refused"]] == ["counted/a", "counted/b"]
    assert "a native task is judged by checks" in said["refused"][0]["why"]
    assert list((tmp_path / "out").iterdir()) == []
    unknown = here("tasks", "convert", "shell", tmp_path / "x", "--to", "natvie")
    assert (unknown.returncode, "Did you mean 'native'?" in unknown.stderr) == (2, True)


def test_training_refuses_what_failed_and_says_why(here, small, tmp_path):
    words = ["train", "examples/quickstart.toml", "--folder", tmp_path / "run", "--tasks.set", small]
    done = here(*words)
    assert done.returncode == 2
    assert "small/bad: The solution was never rewarded" in done.stderr
    assert f"harnessgym tasks check {small}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_rollouts_leave_out_what_failed(harnessgym, here, small, tmp_path):
    (section,) = write_harnesses(tmp_path, ["good"])
    program = json.dumps(section["settings"]["argv"])
    words = [
        "rollout",
        "--tasks",
        small,
        "--sandbox",
        "process",
        "--upstream",
        "scripted",
        "--set",
        f"argv={program}",
    ]
    done = harnessgym(*words, "--folder", tmp_path / "one", "--task", "good", "--task", "small/bad")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "one" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["small/good"]
    assert "left out: 1 task" in done.stderr
    assert "small/bad: The solution was never rewarded" in done.stderr
    assert "never checked" not in done.stderr
    kept = here(*words, "--folder", tmp_path / "two", "--unfit")
    assert kept.returncode == 0, kept.stderr
    assert len((tmp_path / "two" / "results.jsonl").read_text().splitlines()) == 3
    assert "1 task of" in kept.stderr
    assert "never checked" in kept.stderr
    none = here(*words, "--folder", tmp_path / "three", "--task", "bad")
    assert none.returncode == 2
    assert "No task is left to run" in none.stderr
    unknown = here(*words, "--folder", tmp_path / "four", "--task", "goof")
    assert (unknown.returncode, "There is no task 'goof'" in unknown.stderr) == (2, True)


@pytest.mark.bubblewrap
def test_every_command_that_opens_sandboxes_hides_what_it_is_told_to(here, tmp_path):
    write_task(
        tmp_path / "set", "empty", toml=ONE.replace("1\\n", "0\\n"), gold="ls /usr/share | wc -l > a.txt\n"
    )
    hidden = ("--hidden", "/usr/share")
    for words in (
        ("tasks", "run", tmp_path / "set", "empty", "--gold"),
        ("cheats", "--tasks", tmp_path / "set", "--cheat", "reward-files-inside"),
    ):
        assert [here(*words, *more).returncode for more in ((), hidden)] == [1, 0]
    (section,) = write_harnesses(tmp_path, ["good"])
    look = ["sh", "-c", 'ls /usr/share | wc -l > a.txt; exec "$0" "$@"', *section["settings"]["argv"]]
    words = (
        "rollout",
        "--tasks",
        tmp_path / "set",
        "--upstream",
        "scripted",
        "--set",
        f"argv={json.dumps(look)}",
        "--set",
        f"readable={json.dumps([str(tmp_path / 'good.py')])}",
    )
    rewards = []
    for folder, more in (("shown", ()), ("hidden", hidden)):
        done = here(*words, "--folder", tmp_path / folder, *more)
        assert done.returncode == 0, done.stderr
        (line,) = (tmp_path / folder / "results.jsonl").read_text().splitlines()
        rewards.append(json.loads(line)["reward"])
    assert rewards == [0.0, 1.0]
