"""`harnessgym cheats` as people run it."""

import json
import subprocess
import sys

import pytest

from harnessgym.cli import main


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "harnessgym", "cheats", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.bubblewrap
def test_the_command_prints_a_table_and_says_no_hole():
    done = run(
        "--tasks", "shell", "--limit", "1", "--cheat", "exits-at-import", "--cheat", "reads-this-machine"
    )
    assert done.returncode == 0, done.stderr
    assert "exits-at-import" in done.stdout
    assert "(gold)" in done.stdout


@pytest.mark.bubblewrap
def test_disguises_are_drawn_by_the_seed():
    words = (
        "--tasks",
        "shell",
        "--limit",
        "1",
        "--cheat",
        "emptied-runner",
        "--disguises",
        "1",
        "--seed",
        "2",
    )
    done = run(*words, "--json")
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 0, done.stderr
    assert [(row["cheat"], row["attack"]) for row in results[2:]] == [
        ("emptied-runner", 14),
        ("emptied-runner@2.0", 14),
    ]


@pytest.mark.bubblewrap
def test_a_broken_task_is_exit_status_1(tmp_path):
    folder = tmp_path / "set" / "easy"
    (folder / "gold").mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.")
    (folder / "gold" / "a.txt").write_text("x")
    (folder / "task.toml").write_text(
        '[[tests]]\nkind = "files"\nrules = [{ path = "b.txt", absent = true }]\n'
    )
    done = run("--tasks", str(tmp_path / "set"), "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert said["ok"] is False
    assert [row["cheat"] for row in said["results"]] == ["(gold)", "(nothing)"]
    assert "doing nothing scored 1" in said["holes"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tasks", "shell", "--cheat", "x"], "There is no cheat 'x'"),
        (["--tasks", "shell", "--sandbox", "process"], "does not offer"),
    ],
)
def test_errors_are_one_message(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["cheats", *words])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert "Traceback" not in printed


def test_an_error_of_the_process_is_one_message():
    done = run("--tasks", "nowhere")
    assert done.returncode == 2
    assert "There are no tasks 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr
