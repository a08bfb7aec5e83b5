"""Scripts for rows that have none: which tests they run, with which command, and how a shell runs them."""

import subprocess

import pytest

from harnessgym.grading.log import is_known
from harnessgym.grading.patches import new_files
from harnessgym.grading.verifiers.eval_log import END, START
from harnessgym.grading.verifiers.evaluation import INSTALLED_PYTEST, eval_script, eval_type_of, parser_of

PATCH = new_files({"tests/test_a.py": "1\n", "tests/data.json": "{}\n", "tests/b/test_c.py": "1\n"})


def command(*arguments, **options):
    """The line between the markers."""
    lines = eval_script(*arguments, **options).splitlines()
    (line,) = lines[lines.index(f": '{START}'") + 1 : lines.index(f": '{END}'")]
    return line


def test_the_tests_of_a_patch_are_run_without_its_data():
    assert command("acme/a", PATCH, "/testbed") == "pytest -rA tests/b/test_c.py tests/test_a.py"


def test_without_a_home_python_runs_pytest_in_the_working_folder():
    assert command("acme/a", PATCH, "") == "installed_pytest -rA tests/b/test_c.py tests/test_a.py"
    assert "\ncd " not in eval_script("acme/a", PATCH, "")


@pytest.mark.parametrize("sources", ["", "src"])
def test_a_folder_of_the_workspace_is_not_run_in_pytests_place(tmp_path, sources):
    """Under `python -m pytest` it is, with the exit code 0."""
    forged = "print('PASSED tests/test_a.py::test_x')\nraise SystemExit(0)\n"
    for path, text in {
        "tests/test_a.py": "import work\n\n\ndef test_x():\n    assert work.right\n",
        "tests/b/test_c.py": "",
        f"{sources}/work.py".lstrip("/"): "right = False\n",
        f"{sources}/pytest/__init__.py".lstrip("/"): forged,
        f"{sources}/pytest/__main__.py".lstrip("/"): forged,
        f"{sources}/_pytest.py".lstrip("/"): forged,
        f"{sources}/sitecustomize.py".lstrip("/"): forged,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    before = f"PYTHONPATH={sources} " if sources else ""
    script = eval_script("acme/a", PATCH, "", command=f"{before}{INSTALLED_PYTEST} -rA -p no:cacheprovider")
    run = subprocess.run(
        ["bash", "-c", script + "exit"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "FAILED tests/test_a.py::test_x - assert False" in run.stdout, run
    assert "PASSED" not in run.stdout
    (tmp_path / sources / "work.py").write_text("right = True\n")
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "PASSED tests/test_a.py::test_x" in run.stdout, run


def test_named_tests_and_a_command_come_before_the_patchs():
    assert command("acme/a", PATCH, "/h", ["t.py::a b"], "tox") == "tox 't.py::a b'"


def test_a_home_with_a_space_is_quoted():
    assert "\ncd '/a b'\n" in eval_script("acme/a", PATCH, "/a b")


@pytest.mark.parametrize(
    ("repo", "begin", "end"),
    [
        ("sympy/sympy", "PYTHONWARNINGS=", " tests/b/test_c.py tests/test_a.py"),
        ("sphinx-doc/sphinx", "tox --current-env -epy39 -v --", " tests/b/test_c.py tests/test_a.py"),
        ("django/django", "./tests/runtests.py --verbosity 2", " b.test_c test_a"),
    ],
)
def test_repositories_with_a_command_of_their_own(repo, begin, end):
    line = command(repo, PATCH, "/testbed")
    assert line.startswith(begin)
    assert line.endswith(end)


@pytest.mark.parametrize(
    "repo", ["django/django", "sympy/sympy", "astropy/astropy", "scikit-learn/scikit-learn", "acme/a"]
)
def test_the_parser_of_every_repository_is_there(repo):
    assert is_known(parser_of(repo))


def test_other_repositories_are_read_as_pytest():
    assert parser_of("acme/a") == "parse_log_pytest"
    assert parser_of("django/django") == "parse_log_django"


def test_some_runners_name_only_failures():
    assert eval_type_of("eslint/eslint") == "fail_only"
    assert eval_type_of("acme/a") == "pass_and_fail"


def test_a_shell_prints_the_markers_around_the_tests_output(tmp_path):
    script = eval_script("acme/a", PATCH, str(tmp_path), ["two words"], "echo ran in $PWD:")
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    before, _, rest = done.stdout.partition(START)
    output, _, _ = rest.partition(END)
    assert f"ran in {tmp_path}: two words" in output
    assert "ran in" not in before
