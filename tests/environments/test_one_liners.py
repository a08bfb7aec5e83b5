"""One-liners: splits that share nothing, one command that does each, and a grader that no file can upset."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.one_liners import OneLiners, grade
from environments.one_liners.tasks import KINDS, words
from harnessgym.task import Split, Task

SPLITS: tuple[Split, Split] = ("train", "test")
TASKS = {split: OneLiners().tasks(split) for split in SPLITS}
FIRST = {task.metadata["kind"]: task for task in reversed(TASKS["train"])}


def lay(task: Task, folder: Path) -> None:
    for path, text in task.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def reward(task: Task, folder: Path, command: str) -> float:
    lay(task, folder)
    subprocess.run(["sh", "-c", command], cwd=folder, check=False, capture_output=True)
    return grade(task, folder).rewards["reward"]


def gold(task: Task) -> str:
    assert task.solution is not None
    return task.solution.run[0][-1]


def shapes(split: Split) -> set[str]:
    """Instructions with every word of the split taken out."""
    names = "|".join(words(split))
    return {re.sub(rf"\b({names})\b", "_", task.instruction) for task in TASKS[split]}


def test_tasks_are_the_same_each_time_and_kinds_take_turns() -> None:
    for split in SPLITS:
        assert OneLiners().tasks(split) == TASKS[split]
        counts = [sum(task.metadata["kind"] == kind for task in TASKS[split]) for kind in KINDS]
        assert max(counts) - min(counts) <= 1
        assert all(task.split == split for task in TASKS[split])
    assert len({task.id for split in SPLITS for task in TASKS[split]}) == sum(map(len, TASKS.values()))
    assert len(TASKS["test"]) >= 256


def test_splits_share_no_word_no_wording_and_no_instruction() -> None:
    assert not set(words("train")) & set(words("test"))
    assert not shapes("train") & shapes("test")
    assert len(shapes("train")) == sum(len(kind.wordings["train"]) for kind in KINDS.values())
    assert not {task.instruction for task in TASKS["train"]} & {task.instruction for task in TASKS["test"]}


@given(st.sampled_from(SPLITS), st.integers(0, 399))
def test_a_task_names_all_that_its_solution_needs(split: Split, index: int) -> None:
    task = TASKS[split][index]
    for name in gold(task).split()[1:]:
        assert re.search(rf"\b{re.escape(name)}\b", task.instruction)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_solution_scores_one_and_nothing_scores_zero(kind: str, split: Split, tmp_path: Path) -> None:
    for number, task in enumerate([task for task in TASKS[split] if task.metadata["kind"] == kind][:12]):
        (tmp_path / f"{number}-gold").mkdir()
        (tmp_path / f"{number}-nothing").mkdir()
        assert reward(task, tmp_path / f"{number}-gold", gold(task)) == 1.0
        assert reward(task, tmp_path / f"{number}-nothing", "true") == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf *",
        "rm *.txt",
        "touch {one} {other}",
        "mkdir -p {one} {other} {word}",
        "mkdir elsewhere; mv *.txt elsewhere",
    ],
)
def test_other_commands_score_zero(kind: str, command: str, tmp_path: Path) -> None:
    task = FIRST[kind]
    names = [*task.files, *task.metadata["expect"]]
    places = {"one": names[0], "other": names[-1], "word": names[-1].split("/")[0]}
    assert reward(task, tmp_path, command.format(**places)) == 0.0


@pytest.mark.parametrize("kind", ["rename", "move"])
def test_a_copy_is_no_move(kind: str, tmp_path: Path) -> None:
    assert reward(FIRST[kind], tmp_path, gold(FIRST[kind]).replace("mv", "cp")) == 0.0


def expected_file(task: Task) -> str:
    return next(path for path, text in task.metadata["expect"].items() if text)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_small_file_is_wrong(kind: str, tmp_path: Path) -> None:
    task = FIRST[kind]
    path = tmp_path / expected_file(task)
    elsewhere = tmp_path / "elsewhere"
    assert reward(task, tmp_path, gold(task)) == 1.0
    elsewhere.write_bytes(path.read_bytes())
    for put in (
        lambda: path.symlink_to(elsewhere),
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.write_bytes(elsewhere.read_bytes() + b"\n" * 5000),
        lambda: path.write_bytes(b"\xff\xfe"),
    ):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        put()
        assert grade(task, tmp_path).rewards == {"reward": 0.0}


def test_a_folder_that_is_a_link_or_a_file_is_wrong(tmp_path: Path) -> None:
    task = FIRST["folder"]
    (name,) = (path.rstrip("/") for path in task.metadata["expect"] if path.endswith("/"))
    assert reward(task, tmp_path, f"mkdir real; ln -s real {name}") == 0.0
    (tmp_path / name).unlink()
    assert reward(task, tmp_path, f"touch {name}") == 0.0
    (tmp_path / name).unlink()
    assert reward(task, tmp_path, f"mkdir {name}") == 1.0


def test_a_dangling_link_is_not_gone(tmp_path: Path) -> None:
    task = FIRST["delete"]
    assert reward(task, tmp_path, f"{gold(task)}; ln -s nowhere {gold(task).split()[-1]}") == 0.0
