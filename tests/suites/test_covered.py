"""Every module has a test file of its name or a line in the table; faults of the table are reported."""

import pytest

from tests.suites.covered import Coverage, main

FILES = {
    "harnessgym/__init__.py": '"""Nothing but names."""\n',
    "harnessgym/clock.py": "def now(): pass\n",
    "harnessgym/timer.py": "import harnessgym.clock\ndef wait(): harnessgym.clock.now()\n",
    "harnessgym/loader.py": 'def load():\n    return open("program.py")\n',
    "harnessgym/program.py": "def run(): pass\n",
    "proxies/dialects/chat.py": "def parse(): pass\n",
    "tests/harnessgym/test_timer.py": "import harnessgym.timer\n",
    "tests/proxies/test_dialect_chat.py": "from proxies.dialects import chat\n",
    "tests/test_loads.py": "import harnessgym.loader\n",
    "tests/trainers/test_clock.py": "import trainers.clock\n",
}


@pytest.fixture
def project(tmp_path):
    def write(table, **files):
        for path, text in {**FILES, **files, "tests/coverage.toml": table}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write


GOOD = """
"harnessgym/clock.py" = "tests/harnessgym/test_timer.py"
"harnessgym/loader.py" = "tests/test_loads.py"
"harnessgym/program.py" = "tests/test_loads.py"
"""


def test_a_complete_table_has_no_problems(project):
    assert Coverage(project(GOOD)).problems() == []


def test_a_file_of_the_same_name_about_another_module_does_not_count(project):
    assert Coverage(project("")).problems() == [
        f"harnessgym/{name}.py has no test file of its name and no line in tests/coverage.toml."
        for name in ("clock", "loader", "program")
    ]


def test_a_folder_stands_for_its_modules(project):
    root = project(
        '"harnessgym/" = "tests/test_loads.py"\n"harnessgym/clock.py" = "tests/harnessgym/test_timer.py"\n'
    )
    assert Coverage(root).problems() == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('"harnessgym/gone.py" = "tests/test_loads.py"', "names harnessgym/gone.py, which is not there"),
        (
            '"harnessgym/__init__.py" = "tests/test_loads.py"',
            "names harnessgym/__init__.py, which is not there or has no code",
        ),
        ('"harnessgym/timer.py" = "tests/test_gone.py"', "names tests/test_gone.py, which is no test file"),
        (
            '"harnessgym/timer.py" = "tests/test_loads.py"',
            "harnessgym/timer.py: tests/test_loads.py does not lead to it",
        ),
    ],
)
def test_a_line_that_is_wrong_is_named(project, line, problem):
    (message,) = Coverage(project(GOOD + line)).problems()
    assert problem in message


def test_write_repairs_the_table(project, capsys):
    root = project(
        '"harnessgym/gone.py" = "tests/test_loads.py"\n"harnessgym/program.py" = "tests/test_loads.py"\n'
    )
    assert main(["--root", str(root), "--write"]) == 0
    assert Coverage(root).table == {
        "harnessgym/clock.py": "tests/harnessgym/test_timer.py",
        "harnessgym/loader.py": "tests/test_loads.py",
        "harnessgym/program.py": "tests/test_loads.py",
    }
    assert "harnessgym/gone.py: tests/test_loads.py -> None\n" in capsys.readouterr().out


def test_a_module_that_no_test_leads_to_stays_a_problem(project):
    root = project(GOOD, **{"trainers/lonely.py": "def f(): pass\n"})
    assert main(["--root", str(root), "--write"]) == 1


def test_every_module_of_the_project_is_covered():
    assert Coverage().problems() == []
