"""Programming languages as short files: what is short for what, and what a mistake is called."""

import subprocess
import sys

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.language import (
    ProgrammingLanguage,
    checked,
    read_language,
    read_table,
    shipped,
    shipped_languages,
)


def language(**fields):
    return checked(
        ProgrammingLanguage, {"language": "x", "extension": "x", "run": "xrun {file}", **fields}, "x"
    )


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_a_string_is_split_into_words_as_in_a_shell():
    made = language(compile="cc -o {program} '{file} x'", run=["{program}", "a b"])
    assert made.compile == ("cc", "-o", "{program}", "{file} x")
    assert made.run == ("{program}", "a b")


def test_an_installation_is_one_command_or_several():
    assert language(install="apt-get update").install == (("sh", "-c", "apt-get update"),)
    assert language(install=["a b", ["pip", "install", "c"]]).install == (
        ("sh", "-c", "a b"),
        ("pip", "install", "c"),
    )


def test_an_extension_may_begin_with_a_dot():
    assert language(extension=".py").extension == "py"


def test_timeout_is_another_name_of_timeout_s():
    assert language(timeout=3).timeout_s == 3.0


def test_the_source_file_is_named_by_the_extension_or_by_file():
    assert language(extension="py").source == "solution.py"
    assert language(file="Main.java").source == "Main.java"


def test_placeholders_are_filled_in_everywhere():
    made = language(compile="cc -o{program} {file}", file="a.c")
    assert made.command(made.compile) == ("cc", "-o./program", "a.c")


def test_programs_are_those_that_are_named_literally():
    assert language(compile="cc {file}", run="{program}").programs == ("cc",)
    assert language(compile="tool {file}", run="tool run").programs == ("tool",)
    assert language(run="/usr/bin/env {file}").programs == ()


def test_the_probe_asks_for_the_programs_unless_there_is_another():
    assert language(probe="x --version").probing == ("x", "--version")
    assert language().probing[-1] == "xrun"


def test_the_probe_fails_for_a_program_that_is_not_there():
    done = subprocess.run(
        language(run="no-such-program-here {file}").probing, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "no-such-program-here is not there\n")


def test_the_probe_succeeds_for_a_program_that_is_there():
    assert subprocess.run(language(run="sh {file}").probing, check=False).returncode == 0


def test_missing_programs_are_named_with_how_to_install_them():
    made = language(
        run="no-such-program-here {file}", install=["apt-get install x", ["pip", "install", "a b"]]
    )
    assert made.missing() == (
        "x needs no-such-program-here, which this machine does not have. "
        "As root: apt-get install x; pip install 'a b'"
    )


def test_nothing_is_missing_where_the_programs_are_there():
    assert language(run="sh {file}").missing() == ""


def test_a_language_without_installation_says_so():
    assert language().remedy == "Its file does not say how to install it (`install`)."


@pytest.mark.parametrize("name", shipped_languages())
def test_every_shipped_language_is_complete(name):
    made = shipped(name)
    assert made.language == name
    assert made.install
    assert made.prompt
    assert made.source in made.command(made.compile or made.run)


def test_shipped_languages_are_sorted():
    assert shipped_languages() == sorted(shipped_languages())
    assert {"c", "python", "lua"} <= set(shipped_languages())


def test_an_unknown_language_has_a_hint():
    with pytest.raises(TaskError) as error:
        shipped("pyton")
    assert str(error.value).startswith("No language 'pyton' is shipped.")
    assert "Did you mean 'python'?" in str(error.value)
    assert str(error.value).endswith("Or write languages/pyton.toml.")


def test_a_file_overrides_keys_of_the_shipped_language(tmp_path):
    made, notes = read_language(write(tmp_path, "lua.toml", 'run = "luajit {file}"\n'))
    assert made.run == ("luajit", "{file}")
    assert made.prompt == shipped("lua").prompt
    assert notes == ()


def test_a_language_is_named_after_its_file_unless_it_says_otherwise(tmp_path):
    path = write(tmp_path, "forth.toml", 'extension = "fs"\nrun = "gforth {file}"\n')
    assert read_language(path)[0].language == "forth"
    path = write(tmp_path, "other.yaml", "language: forth\nextension: fs\nrun: gforth {file}\n")
    assert read_language(path)[0].language == "forth"


def test_the_only_language_of_a_set_must_be_named(tmp_path):
    with pytest.raises(TaskError, match=r"language\.toml: language: which language is it\?"):
        read_language(write(tmp_path, "language.toml", 'extension = "x"\nrun = "x"\n'))


def test_an_unknown_key_is_a_note(tmp_path):
    _, notes = read_language(write(tmp_path, "lua.json", '{"timeoutt": 3, "color": 1}'))
    assert len(notes) == 2
    assert "lua.json: a language has no key 'color', so it has no effect." in notes[0]
    assert notes[1].endswith("Did you mean 'timeout'?")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('run = "x"\n', "extension"),
        ('extension = "x"\n', "run"),
        ('extension = "x"\nrun = []\n', "run"),
        ('extension = "x y"\nrun = "x"\n', "extension"),
        ('extension = "x"\nrun = "x"\nfile = "../a"\n', "file"),
        ('extension = "x"\nrun = "x"\ntimeout_s = 0\n', "timeout_s"),
        ('extension = "x"\nrun = "x"\ntimeout_s = 3601\n', "timeout_s"),
        ('language = "a b"\nextension = "x"\nrun = "x"\n', "language"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(tmp_path, text, key):
    with pytest.raises(TaskError) as error:
        read_language(write(tmp_path, "mine.toml", text))
    assert "mine.toml" in str(error.value)
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "x = "), ("a.yaml", "a: ["), ("a.json", "{"), ("a.json", "[" * 100_000)]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, text):
    with pytest.raises(TaskError, match=rf"{name} cannot be read"):
        read_table(write(tmp_path, name, text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"absent\.yaml cannot be read"):
        read_table(tmp_path / "absent.yaml")


@pytest.mark.parametrize(("name", "text"), [("a.json", "[1]"), ("a.yaml", "1: a"), ("a.yaml", "")])
def test_a_table_has_keys_that_are_texts(tmp_path, name, text):
    with pytest.raises(TaskError, match="must hold a table of keys and values"):
        read_table(write(tmp_path, name, text))


def test_an_interpreter_given_by_its_path_needs_no_program_on_the_path():
    assert language(run=[sys.executable, "{file}"]).missing() == ""
