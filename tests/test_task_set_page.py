"""The task set in Python that docs/tasks.md shows, written to a folder of its own and used from there."""

import json
import re
from pathlib import Path

import pytest

from tests.test_own_code import harnessgym

PAGE = (Path(__file__).parents[1] / "docs/tasks.md").read_text()
SECTION = PAGE.partition("## A task set in Python\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    """What a reader has who did as the page says."""
    module, puzzle, _ = (text for _, text in BLOCKS)
    (tmp_path / "my_puzzles.py").write_text(module)
    (tmp_path / "puzzles").mkdir()
    (tmp_path / "puzzles/bolts.json").write_text(puzzle)
    held_out = json.loads(puzzle) | {"split": "test", "question": "How many nuts?", "answer": "2"}
    (tmp_path / "puzzles/nuts.json").write_text(json.dumps(held_out))
    return tmp_path


def test_the_page_has_a_module_a_puzzle_and_a_command():
    assert [language for language, _ in BLOCKS] == ["python", "json", ""]


def test_its_tasks_are_listed(folder):
    listed = harnessgym("tasks", "list", "my_puzzles:Puzzles", cwd=folder)
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:3]] == [
        ["puzzles/bolts", "train"],
        ["puzzles/nuts", "test"],
    ]


@pytest.mark.bubblewrap
def test_its_command_finds_that_gold_scores_1_and_cheats_0(folder):
    command = BLOCKS[2][1].split()
    checked = harnessgym(*command[1:], "--json", cwd=folder, timeout_s=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = json.loads(checked.stdout)
    assert found["counts"]["passed"] == 2
    assert [set(task["gold"]) for task in found["tasks"]] == [{1.0}, {1.0}]
    assert [task["nothing"] for task in found["tasks"]] == [0.0, 0.0]
