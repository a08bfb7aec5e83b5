"""The lookup tasks: disjoint splits, one way to the answer, and a grader that no file can upset."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.lookup import LookupTasks, grade
from environments.lookup.protocol import ANSWER_FILE, CATALOG_FILE, KINDS, TOOLS, UNKNOWN, Catalog
from environments.lookup.tasks import TEMPLATES, item_names
from harnessgym.task import Split, Task

SPLITS: tuple[Split, Split] = ("train", "test")
TASK = LookupTasks().tasks("train")[0]


def catalog_of(task: Task) -> Catalog:
    return Catalog.from_json(task.files[CATALOG_FILE])


def test_sizes_ids_and_order_are_fixed() -> None:
    tasks = {split: LookupTasks().tasks(split) for split in SPLITS}
    assert len(tasks["train"]) >= 400
    assert len(tasks["test"]) >= 250
    assert len({task.id for split in SPLITS for task in tasks[split]}) == sum(map(len, tasks.values()))
    assert all(task.split == split for split in SPLITS for task in tasks[split])


def test_another_process_makes_the_same_tasks() -> None:
    script = "from environments.lookup import LookupTasks\n"
    script += "print([LookupTasks().tasks(split) for split in ('train', 'test')])"
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str([LookupTasks().tasks(split) for split in SPLITS])


def test_splits_share_no_item_no_wording_and_no_question() -> None:
    train, test = (LookupTasks().tasks(split) for split in SPLITS)
    items = [{name for task in tasks for name in catalog_of(task).ids} for tasks in (train, test)]
    assert not items[0] & items[1]
    assert not set(item_names("train")) & set(item_names("test"))
    wordings = [
        {
            task.instruction.replace(task.metadata["item"], "{name}").replace(task.metadata["kind"], "{kind}")
            for task in tasks
        }
        for tasks in (train, test)
    ]
    assert not wordings[0] & wordings[1]
    assert not {task.instruction for task in train} & {task.instruction for task in test}
    assert not any(held_out in seen for held_out in TEMPLATES["test"] for seen in TEMPLATES["train"])


@pytest.mark.parametrize("split", SPLITS)
def test_only_the_right_tool_on_the_right_item_gives_the_answer(split: Split) -> None:
    for task in LookupTasks().tasks(split):
        catalog, kind = catalog_of(task), task.metadata["kind"]
        assert f'"{task.metadata["item"]}"' in task.instruction
        assert [other for other in KINDS if other in task.instruction] == [kind]
        id_ = catalog.call("find", {"name": task.metadata["item"]})
        assert catalog.call(kind, {"id": id_}) == task.metadata["answer"]
        values = [value for attributes in catalog.attributes.values() for value in attributes.values()]
        assert values.count(task.metadata["answer"]) == 1
        assert len(values) == len(set(values)) == len(catalog.ids) * len(KINDS)


@pytest.mark.parametrize("split", SPLITS)
def test_kinds_are_balanced(split: Split) -> None:
    kinds = [task.metadata["kind"] for task in LookupTasks().tasks(split)]
    assert {kinds.count(kind) for kind in KINDS} == {len(kinds) // len(KINDS)}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find", {"name": "no-such"}),
        ("find", {"id": "A1"}),
        ("find", {}),
        ("find", {"name": ["A1"]}),
        ("find", None),
        ("find", "zor-min"),
        ("price", {"id": "??"}),
        ("price", {"id": 7}),
        ("price", {"id": "A1", "name": "x"}),
        ("colour", {"id": "A1"}),
        ("", {}),
    ],
)
def test_a_wrong_call_gets_unknown(tool: str, arguments: object) -> None:
    catalog = Catalog({"zor-min": "A1"}, {"A1": {"price": "10", "stock": "11", "weight": "12"}})
    assert catalog.call(tool, arguments) == UNKNOWN


def test_catalog_survives_its_file() -> None:
    catalog = catalog_of(TASK)
    assert Catalog.from_json(catalog.to_json()) == catalog
    assert set(json.loads(TASK.files[CATALOG_FILE])) == {"ids", "attributes"}


def test_tools_are_what_the_catalog_answers() -> None:
    assert [tool["function"]["name"] for tool in TOOLS] == ["find", *KINDS]
    for tool in TOOLS:
        parameters = tool["function"]["parameters"]
        assert parameters["required"] == list(parameters["properties"])


@pytest.mark.parametrize("wrap", ["{}", "{}\n", "  {}\n\n", "\t{}"])
def test_the_right_answer_scores_one(tmp_path: Path, wrap: str) -> None:
    (tmp_path / ANSWER_FILE).write_text(wrap.format(TASK.metadata["answer"]))
    assert grade(TASK, tmp_path).rewards == {"reward": 1.0}


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _link(path: Path) -> None:
    right = path.parent / "right.txt"
    right.write_text(TASK.metadata["answer"])
    path.symlink_to(right)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    path.write_text(TASK.metadata["answer"] + " " * 1_000_000)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "make", [_missing, _link, _loop, _pipe, _huge, _sparse, Path.mkdir], ids=lambda make: make.__name__
)
def test_an_odd_answer_file_scores_zero(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / ANSWER_FILE)
    assert grade(TASK, tmp_path).rewards == {"reward": 0.0}


def test_a_missing_workspace_scores_zero(tmp_path: Path) -> None:
    assert grade(TASK, tmp_path / "nowhere").rewards == {"reward": 0.0}


@given(content=st.binary(max_size=64))
def test_any_other_content_scores_zero(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / ANSWER_FILE).write_bytes(content)
    right = content.strip() == TASK.metadata["answer"].encode()
    assert grade(TASK, workspace).rewards == {"reward": float(right)}


@pytest.mark.parametrize("wrong", ["{}.", "The answer is {}", "{} {}", '"{}"', "{}.0", "0{}"])
def test_the_answer_must_stand_alone(tmp_path: Path, wrong: str) -> None:
    (tmp_path / ANSWER_FILE).write_text(wrong.replace("{}", TASK.metadata["answer"]))
    assert grade(TASK, tmp_path).rewards == {"reward": 0.0}


def test_tasks_and_grader_need_no_torch() -> None:
    script = (
        "import sys, environments.lookup; assert not {'torch', 'fastapi', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
