"""Folders of tasks are read together: one malformed task leaves the others, and each note is given once."""

import pytest

from harnessgym.errors import TaskError
from harnessgym.task import Task
from harnessgym.tasks.format import LoadedTasks, ReadTasks, read_folders, without_doubles
from harnessgym.tasks.notes import Notes, joined


def read_text(folder, prefix, notes):
    """A task whose `task.txt` has notes, one a line. `wrong` is a mistake."""
    for line in (folder / "task.txt").read_text().splitlines():
        if line == "wrong":
            raise TaskError(f"{folder.name} is wrong.")
        notes.say(line)
    return Task(f"{prefix}/{folder.name}".lstrip("/"), "Do it.")


@pytest.fixture
def folders(tmp_path):
    """Writes folders with a `task.txt` each, below `set`."""

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / "set" / name).mkdir(parents=True)
            (tmp_path / "set" / name / "task.txt").write_text(text)
        return tmp_path / "set"

    return write


class Fixed:
    """A format that reads the same tasks from anywhere."""

    def __init__(self, *tasks, problems=()):
        self.loaded = LoadedTasks("fixed", tasks, problems, ("a note",))
        self.reads = 0

    def recognises(self, path):
        return True

    def read(self, path):
        self.reads += 1
        return self.loaded


def test_tasks_are_sorted_and_have_the_name_of_the_set(folders):
    loaded = read_folders(folders(b="", a=""), "task.txt", read_text)
    assert loaded.name == "set"
    assert [task.id for task in loaded.tasks] == ["set/a", "set/b"]
    assert (loaded.problems, loaded.notes) == ((), ())


def test_a_folder_with_the_marker_is_one_task_without_prefix(folders):
    loaded = read_folders(folders(one="") / "one", "task.txt", read_text)
    assert [task.id for task in loaded.tasks] == ["one"]


def test_folders_without_the_marker_are_no_tasks(folders):
    root = folders(a="")
    (root / "notes").mkdir()
    (root / "README.md").write_text("")
    assert [task.id for task in read_folders(root, "task.txt", read_text).tasks] == ["set/a"]


def test_a_malformed_task_leaves_the_others_and_its_notes_are_dropped(folders):
    loaded = read_folders(folders(a="strange\nwrong\n", b="unknown key\n"), "task.txt", read_text)
    assert [task.id for task in loaded.tasks] == ["set/b"]
    assert loaded.problems == ("a is wrong.",)
    assert loaded.notes == ("b: unknown key",)


def test_a_note_of_several_tasks_is_given_once(folders):
    loaded = read_folders(folders(a="same\nsame\n", b="same\nother\n"), "task.txt", read_text)
    assert loaded.notes == ("a, b: same", "b: other")


def test_a_path_that_is_no_folder_is_named(tmp_path):
    with pytest.raises(TaskError, match=f"There is no task folder {tmp_path / 'absent'}"):
        read_folders(tmp_path / "absent", "task.txt", read_text)


def test_a_note_names_three_tasks_at_most():
    assert joined([("a", "x"), ("b", "x"), ("c", "x")]) == ("a, b, c: x",)
    assert joined([("a", "x"), ("b", "y"), ("b", "x"), ("c", "x"), ("d", "x"), ("e", "x")]) == (
        "a, b, c and 2 more: x",
        "b: y",
    )


def test_a_note_is_kept_once_and_in_order():
    notes = Notes()
    for text in ("b", "a", "b"):
        notes.say(text)
    assert notes.said == ["b", "a"]


def test_the_first_of_two_tasks_with_one_id_is_kept(tmp_path):
    first, second, other = Task("a", "first"), Task("a", "second"), Task("b", "other")
    kept, problems = without_doubles([first, second, other], tmp_path)
    assert kept == (first, other)
    assert problems == (f"{tmp_path} has two tasks with the id 'a'; the first is used. Rename one.",)


def test_a_set_is_read_once_and_split(tmp_path):
    form = Fixed(Task("a", "x"), Task("b", "x", "test"))
    tasks = ReadTasks(form, tmp_path)
    assert form.reads == 0
    assert [task.id for task in tasks.tasks("train")] == ["a"]
    assert [task.id for task in tasks.tasks("test")] == ["b"]
    assert (tasks.name, tasks.notes, tasks.problems) == ("fixed", ("a note",), ())
    assert form.reads == 1


def test_a_set_without_a_usable_task_lists_eight_problems(tmp_path):
    tasks = ReadTasks(Fixed(problems=tuple(f"problem {number}" for number in range(10))), tmp_path)
    with pytest.raises(TaskError) as error:
        tasks.tasks("train")
    first, *lines = str(error.value).splitlines()
    assert first == f"{tmp_path} holds no task that can be used."
    assert [line.strip() for line in lines] == [
        *(f"problem {number}" for number in range(8)),
        "... and 2 more",
    ]


def test_an_empty_set_says_that_it_is_empty(tmp_path):
    with pytest.raises(TaskError, match="It is empty"):
        ReadTasks(Fixed(), tmp_path).name  # noqa: B018


def test_the_baseline_lies_in_the_folder_or_beside_the_file(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    assert ReadTasks(Fixed(), tmp_path).baseline == tmp_path / "baseline.json"
    assert ReadTasks(Fixed(), tmp_path / "rows.jsonl").baseline == tmp_path / "rows.jsonl.baseline.json"
