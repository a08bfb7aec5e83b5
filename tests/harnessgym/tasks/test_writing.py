"""Sets of tasks written to a folder: names of their folders, what is refused, and what remains of it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import ConfigError, TaskError
from harnessgym.task import Task
from harnessgym.tasks.writing import convert, folder_name, lay_texts, task_writer


class Instructions:
    """Writes only the instruction. Refuses an empty one after it has written a file."""

    def write(self, task, folder):
        (folder / "instruction.txt").write_text(task.instruction)
        if not task.instruction:
            raise TaskError("It has no instruction.")
        return ["The rest is left out."]


class Lines:
    """Appends the instruction to the set's file."""

    rows = True

    def write(self, task, folder):
        if not task.instruction:
            raise TaskError("It has no instruction.")
        with (folder / "all.txt").open("a") as file:
            file.write(f"{task.instruction}\n")
        return ()


def tasks(**instructions):
    return [Task(name.replace("__", "/"), text) for name, text in instructions.items()]


def test_each_task_has_a_folder_and_its_notes(tmp_path):
    first, second = convert(tasks(s__a="one", s__b="two"), Instructions(), tmp_path / "out")
    assert (first.task, first.folder, first.refused) == ("s/a", tmp_path / "out" / "a", "")
    assert first.notes == ("The rest is left out.",)
    assert (second.folder / "instruction.txt").read_text() == "two"


def test_nothing_remains_of_a_refused_task_and_the_next_is_written(tmp_path):
    first, second = convert(tasks(s__a="", s__b="two"), Instructions(), tmp_path / "out")
    assert (first.refused, first.notes) == ("It has no instruction.", ())
    assert not first.folder.exists()
    assert second.refused == ""


def test_a_name_that_was_used_is_replaced_by_the_whole_id(tmp_path):
    written = convert(tasks(s__x__a="1", s__y__a="2", s__z__a="3"), Instructions(), tmp_path / "out")
    assert [each.folder.name for each in written] == ["a", "s-y-a", "s-z-a"]


def test_a_task_that_is_there_already_is_not_overwritten(tmp_path):
    list(convert(tasks(a="old"), Instructions(), tmp_path / "out"))
    (again,) = convert(tasks(a="new"), Instructions(), tmp_path / "out", add=True)
    assert again.refused == f"{tmp_path / 'out' / 'a'} is there already."
    assert (tmp_path / "out/a/instruction.txt").read_text() == "old"


def test_tasks_can_be_added_to_a_folder_that_is_not_empty(tmp_path):
    list(convert(tasks(a="1"), Instructions(), tmp_path / "out"))
    with pytest.raises(ConfigError, match="is not an empty folder"):
        next(convert(tasks(b="2"), Instructions(), tmp_path / "out"))
    list(convert(tasks(b="2"), Instructions(), tmp_path / "out", add=True))
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"]


def test_a_file_is_no_folder_to_write_into(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is not an empty folder"):
        next(convert(tasks(a="1"), Instructions(), tmp_path / "out"))


def test_an_empty_folder_may_be_there(tmp_path):
    (tmp_path / "out").mkdir()
    assert len(list(convert(tasks(a="1"), Instructions(), tmp_path / "out"))) == 1


def test_rows_of_one_file_share_the_sets_folder(tmp_path):
    first, refused, third = convert(tasks(a="1", b="", c="3"), Lines(), tmp_path / "out")
    assert first.folder == refused.folder == third.folder == tmp_path / "out"
    assert refused.refused == "It has no instruction."
    assert (tmp_path / "out/all.txt").read_text() == "1\n3\n"


def test_an_unknown_writer_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="harbour") as error:
        task_writer("harbour")
    assert "harbor" in str(error.value).replace("harbour", "")


@pytest.mark.parametrize(
    ("task_id", "name"),
    [
        ("set/one", "one"),
        ("one", "one"),
        ("set/one/", "one"),
        ("a b/c d", "c-d"),
        ("..", "task"),
        ("", "task"),
        ("set/--x", "x"),
        ("set/.hidden", "hidden"),
        ("a/1.2_x-y", "1.2_x-y"),
    ],
)
def test_names_of_folders(task_id, name):
    assert folder_name(task_id) == name


@given(st.text(max_size=20))
def test_any_id_gives_a_name_that_is_one_folder(task_id):
    name = folder_name(task_id)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name[0] not in "._-"
    assert folder_name(name) == name


def test_texts_are_laid_as_they_are_with_their_modes(tmp_path):
    lay_texts(tmp_path, {"a/b.sh": "x\r\n", "c": "é"}, {"a/b.sh"})
    assert (tmp_path / "a/b.sh").read_bytes() == b"x\r\n"
    assert (tmp_path / "c").read_bytes() == "é".encode()
    assert (tmp_path / "a/b.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o644
