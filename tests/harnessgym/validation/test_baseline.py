"""Baselines: what makes a task another one, several writers of one file, files that are none; and what
writers can say.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import ConfigError, TaskError
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.tasks.native import GRADER, read_task
from harnessgym.tasks.native_writing import NativeWriter
from harnessgym.tasks.payload import payload_of
from harnessgym.tasks.source import named, task_set
from harnessgym.tasks.writing import convert, folder_name
from harnessgym.validation.baseline import Baseline, BaselineEntry, baseline_path, digest_of, fitness
from tests.harnessgym.tasks.conftest import write_task

TASK = Task(
    "set/one", "Do it.", files={"a": "1"}, needs=frozenset({"root", "network", "hosts"}), grader="m:g"
)


def entry(task, state="passed"):
    return BaselineEntry(digest=digest_of(task), state=state, sandbox="process", gold=(1.0,), nothing=0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"instruction": "Do that."},
        {"files": {"a": "2"}},
        {"image": "debian:13"},
        {"limits": Limits(wall_s=1)},
        {"setup": Setup((("true",),))},
        {"grader": "m:h"},
        {"metadata": {"tests": [1]}},
        {"solution": Solution({"a": "3"})},
        {"needs": frozenset({"root"})},
    ],
)
def test_everything_that_a_rollout_depends_on_is_in_the_digest(change):
    assert digest_of(replace(TASK, **change)) != digest_of(TASK)
    assert digest_of(replace(TASK)) == digest_of(TASK)


def test_an_image_folder_counts_by_what_it_holds(tmp_path):
    digests = []
    for name, text in (("a", "FROM x"), ("b", "FROM x"), ("c", "FROM y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text(text)
        digests.append(digest_of(replace(TASK, image=f"context:{tmp_path / name}")))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_the_assets_of_a_repository_of_tasks_count_by_what_they_hold(tmp_path):
    digests = []
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "expected.png").write_text(text)
        digests.append(digest_of(replace(TASK, metadata={"swe_bench": {"assets": str(tmp_path / name)}})))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_what_several_write_is_merged(tmp_path):
    path = tmp_path / "baseline.json"

    def check(number):
        book = Baseline(path)
        for at in range(5):
            task = replace(TASK, id=f"set/{number}-{at}")
            book.put(task.id, entry(task))
        book.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(8)))
    stored = json.loads(path.read_text())["tasks"]
    assert list(stored) == sorted(f"set/{number}-{at}" for number in range(8) for at in range(5))
    assert [found.name for found in tmp_path.iterdir()] == ["baseline.json"]


def test_a_changed_task_is_unchecked_and_a_failed_one_refused(tmp_path):
    root = tmp_path / "set"
    write_task(root, "one")
    write_task(root, "two")
    found = task_set(str(root))
    one, two = found.tasks("train")
    assert fitness("x", found, [one, two]).unchecked == ("set/one", "set/two")
    book = Baseline(baseline_path(found))
    book.put(one.id, entry(one, "failed").model_copy(update={"problems": {"gold": "It is broken."}}))
    book.put(two.id, entry(replace(two, instruction="Something else.")))
    book.flush()
    fit = fitness("x", found, [one, two])
    assert (list(fit.failed), fit.unchecked) == (["set/one"], ("set/two",))
    assert (
        "1 task of 'x' failed when checked:\n  set/one: It is broken.\nSee why: harnessgym tasks check x"
        in fit.refusal
    )
    assert Baseline(baseline_path(found)).stale(two)
    assert fit.of([two]).refusal == ""


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"tasks": 1}', '{"tasks": {"a": {"state": "good"}}}', '{"tasks": {"a": 1}}']
)
def test_a_file_that_is_no_baseline_is_named(tmp_path, text):
    (tmp_path / "baseline.json").write_text(text)
    with pytest.raises(ConfigError, match=r"baseline\.json"):
        Baseline(tmp_path / "baseline.json")


def test_where_a_baseline_lies():
    assert baseline_path(task_set("shell")).as_posix().endswith("environments/shell_tasks/baseline.json")
    assert baseline_path(task_set("lookup")).as_posix().endswith("environments/lookup/baseline.json")


def test_the_shipped_baseline_is_of_the_shipped_tasks():
    found = task_set("shell")
    tasks = [*found.tasks("train"), *found.tasks("test")]
    fit = fitness("shell", found, tasks)
    assert (fit.failed, fit.unchecked) == ({}, ())
    assert {Baseline(baseline_path(found)).of(task).state for task in tasks} == {"passed"}


def test_tasks_are_named_by_id_and_by_its_end():
    tasks = [replace(TASK, id=name) for name in ("s/a/x", "s/b/x", "s/y")]
    assert named(tasks, "y") is tasks[2]
    assert named(tasks, "b/x") is tasks[1]
    with pytest.raises(ConfigError, match="the end of several ids: s/a/x, s/b/x"):
        named(tasks, "x")
    with pytest.raises(ConfigError, match="There is no task 'z'"):
        named(tasks, "z")


TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r"), max_size=20)
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=8).filter(lambda name: name.strip("."))
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(
    files=st.dictionaries(NAMES, TEXT, max_size=3),
    metadata=st.dictionaries(
        NAMES.filter(lambda key: key not in ("tests", "test_files", "score", "base")), VALUES, max_size=3
    ),
    run=st.lists(st.lists(TEXT, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    solution=st.none() | st.dictionaries(NAMES, TEXT, min_size=1, max_size=2).map(Solution),
    wall_s=st.floats(0.5, 1e6),
)
def test_what_is_written_is_read_as_the_same_task(tmp_path_factory, files, metadata, run, solution, wall_s):
    check = {"kind": "files", "rules": [{"path": "a.txt", "content": "1"}]}
    task = Task(
        "one",
        "Do it.",
        files=files,
        setup=Setup(run),
        limits=Limits(wall_s=wall_s),
        solution=solution,
        grader=GRADER,
        metadata={**metadata, "tests": [check], "test_files": {}, "score": "all"},
    )
    (written,) = convert([task], NativeWriter(), tmp_path_factory.mktemp("out") / "set")
    assert (written.refused, written.notes) == ("", ())
    assert payload_of(read_task(written.folder)) == payload_of(task)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"home": "/app", "image": "x"}, "It has home"),
        ({"folders": ("/logs",), "collect": ("/logs/a",)}, "It has folders, collect"),
        ({"grader": "mine:grade"}, "judged by 'mine:grade'"),
        ({"instruction": " "}, "no instruction"),
        ({"files": {"__pycache__/a": ""}}, "__pycache__"),
        ({"metadata": {"tests": [{"kind": "files", "rules": [None]}]}}, "holds null"),
    ],
)
def test_what_would_be_another_task_is_refused(tmp_path, change, says):
    task = replace(Task("one", "Do it.", grader=GRADER), **change)
    with pytest.raises(TaskError, match=says):
        NativeWriter().write(task, tmp_path)
    (written,) = convert([task], NativeWriter(), tmp_path / "out")
    assert says in written.refused
    assert not written.folder.exists()


def test_what_is_left_out_is_said(tmp_path):
    check = {"kind": "files", "rules": [{"path": "a.txt", "content": "1", "absent": None}]}
    run = (("touch", "a b"), ("sh", "-c", "echo 1 > a.txt"))
    task = Task(
        "s/one", "Do it.", grader=GRADER, solution=Solution(run=run), metadata={"tests": [check], "x": None}
    )
    (written,) = convert([task], NativeWriter(), tmp_path / "out")
    assert [note.partition(":")[0] for note in written.notes] == [
        "metadata.x has no value, and is left out",
        "solution",
        "tests[0].rules[0].absent has no value, and is left out",
    ]
    assert (written.folder / "gold.sh").read_text() == "touch 'a b'\nsh -c 'echo 1 > a.txt'\n"


def test_folders_of_tasks_with_one_name_do_not_meet(tmp_path):
    check = {"kind": "files", "rules": [{"path": "a.txt", "content": "1"}]}
    tasks = [
        Task(name, "Do it.", grader=GRADER, metadata={"tests": [check]})
        for name in ("s/a/x", "s/b/x", "../..")
    ]
    found = [written.folder.name for written in convert(tasks, NativeWriter(), tmp_path / "out")]
    assert found == ["x", "s-b-x", "task"]
    assert folder_name("a/Größe 1.0!") == "Gr-e-1.0-"


def test_what_is_known_of_second_opinions_is_told_for_runs_that_require_them(tmp_path):
    root = tmp_path / "set"
    for name in ("judged", "unfit", "untried"):
        write_task(root, name)
    found = task_set(str(root))
    tasks = found.tasks("train")
    assert fitness("x", found, tasks).untried == ("set/judged", "set/unfit", "set/untried")
    book = Baseline(baseline_path(found))
    for task, by_value in zip(tasks, ((4, 2), "It has no tests.", None), strict=True):
        book.put(task.id, entry(task).model_copy(update={"by_value": by_value, "integrity": "in_process"}))
    book.flush()
    assert [Baseline(baseline_path(found)).of(task).by_value for task in tasks] == [
        (4, 2),
        "It has no tests.",
        None,
    ]
    fit = fitness("x", found, tasks)
    assert (fit.refusal, fit.warning) == ("", "")
    assert fit.opinion_refusal == (
        "1 task of 'x' cannot have the second opinion that the run requires:\n  set/unfit: It has no tests.\n"
        "See why: harnessgym tasks check x --second-opinion"
    )
    assert fit.opinion_warning.startswith("1 task of 'x' never checked for the second opinion")
    assert fit.of(tasks[:1]).opinion_refusal == fit.of(tasks[:1]).opinion_warning == ""
