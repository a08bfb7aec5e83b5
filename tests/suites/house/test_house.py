"""Each measure counts what a small project is built to have."""

import pytest

from tests.suites.house import figures, imports, measures
from tests.suites.house.__main__ import main
from tests.suites.house.source import modules_of_tests, package_modules

FILES = {
    "harnessgym/__init__.py": '"""The library."""\nfrom harnessgym.reward import Reward\n',
    "harnessgym/reward.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from harnessgym.rollout import plan\n"
        "class Reward:\n"
        "    def read(self): pass\n"
    ),
    "harnessgym/rollout/__init__.py": '"""Runs tasks."""\n',
    "harnessgym/rollout/plan.py": (
        "import harnessgym.rollout.clock\n"
        "from .clock import Clock as Reading\n"
        "from harnessgym.store import tables\n"
        'NAME = "harnessgym.store.rows:Row"\n'
        "def late():\n"
        "    from harnessgym.reward import Reward\n"
    ),
    "harnessgym/rollout/clock.py": (
        "import harnessgym.reward\nclass Reward: pass\nclass _Reward: pass\nclass Clock: pass\n"
    ),
    "harnessgym/store/tables.py": (
        '"""Rows."""\n# Why it is so.\nx = 1  # beside code\ntext = """\n# no comment\n"""\n'
    ),
    "harnessgym/store/rows.py": "a, b = 1, 2\na, b = [c, d] = 1, 2\na, b = pair()\n(a,) = (1,)\na = 1, 2\n",
    "harnessgym/store/migrations/env.py": "a, b = 1, 2\n",
    "proxies/wide.py": f"x = '{'.' * 104}'\nyy = '{'.' * 104}'\ndef _long():\n    pass\n    pass\n",
    "environments/shell/tasks/fix/main.py": "def f(): pass\n",
    "environments/shell/tasks.py": "def f(): pass\n",
    "tests/test_reward.py": "def test_reward(monkeypatch):\n    assert 1\n    assert 2\n",
    "tests/samples/test_other.py": "assert False\n",
}


@pytest.fixture
def root(tmp_path):
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.fixture
def modules(root):
    return package_modules(root)


def test_task_repositories_and_migrations_are_not_counted(modules, root):
    paths = {module.path for module in modules}
    assert "environments/shell/tasks.py" in paths
    assert not paths & {"environments/shell/tasks/fix/main.py", "harnessgym/store/migrations/env.py"}
    assert [module.path for module in modules_of_tests(root)] == ["tests/test_reward.py"]
    assert measures.root_entries(root) == ["reward", "rollout", "store"]


def test_a_cycle_is_made_of_imports_at_the_top_and_of_type_checking(modules):
    edges = imports.package_imports(modules)
    assert set(edges) == {
        ("harnessgym", "reward"),
        ("reward", "rollout"),
        ("rollout", "reward"),
        ("rollout", "store"),
    }
    assert imports.cycles(edges) == [["reward", "rollout"]]
    assert [each.path for each in edges["rollout", "reward"]] == ["harnessgym/rollout/clock.py"]


def test_two_cycles_are_two_and_a_way_between_them_joins_none():
    edges = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c"), ("e", "f")]
    assert imports.cycles(edges) == [["c", "d", "e"], ["a", "b"]]
    assert imports.cycles(edges[2:5]) == []


def test_a_tiny_module_has_one_importer_in_its_folder(modules):
    assert [(module.name, importer) for module, importer in imports.tiny_modules(modules)] == [
        ("harnessgym.rollout.clock", "harnessgym.rollout.plan")
    ]


def test_public_class_names_that_stand_twice(modules):
    places = measures.duplicate_classes(modules)
    assert {name: [str(place) for place in found] for name, found in places.items()} == {
        "Reward": ["harnessgym/reward.py:4: Reward", "harnessgym/rollout/clock.py:2: Reward"]
    }


def test_places_of_parallel_assignments_comments_and_wide_lines(modules):
    assert [str(place) for place in measures.parallel_assignments(modules)] == [
        "harnessgym/store/rows.py:1: a, b = 1, 2",
        "harnessgym/store/rows.py:2: a, b = [c, d] = 1, 2",
    ]
    assert [str(place) for place in measures.comment_lines(modules)] == [
        "harnessgym/store/tables.py:2: # Why it is so."
    ]
    assert [str(place) for place in measures.wide_lines(modules, 110)] == ["proxies/wide.py:2: 111 columns"]


def test_functions_and_docstrings(modules, root):
    assert [
        (place.text, length)
        for place, length in measures.functions(modules)
        if place.path == "proxies/wide.py"
    ] == [("_long", 3)]
    assert [(place.text, has) for place, has in measures.public_functions(modules)] == [
        ("Reward.read", False),
        ("late", False),
        ("f", False),
    ]
    tests = modules_of_tests(root)
    assert (len(measures.asserts(tests)), len(measures.tests(tests)), len(measures.mock_lines(tests))) == (
        2,
        1,
        1,
    )


def test_a_broken_limit_fails_only_where_limits_are_asked_for(root, capsys):
    assert main(["--root", str(root)]) == 0
    assert main(["--root", str(root), "--limits"]) == 1
    broken = [
        line.split(" is ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("Broken: ")
    ]
    assert broken == [
        "Broken: files per 1K lines",
        "Broken: lines over 110 columns",
        "Broken: `a, b = x, y` per 1K lines",
        "Broken: package cycles in harnessgym",
    ]
    assert main(["--root", str(root), "--list", "cycles"]) == 0
    assert capsys.readouterr().out.startswith("cycle of 2: reward, rollout\n  reward -> rollout (1)\n")


def test_a_project_within_its_limits_passes(tmp_path):
    (tmp_path / "harnessgym").mkdir()
    (tmp_path / "harnessgym/reward.py").write_text(
        '"""Judges."""\n\n\ndef judge():\n    # Why.\n    return 1\n' + "\n" * 180
    )
    assert main(["--root", str(tmp_path), "--limits"]) == 0


def test_rows_hold_the_figures(modules, root):
    rows = {row.name: row.text for row in figures.table(modules, modules_of_tests(root), root)}
    assert (
        rows["files / lines"]
        == f"{len(modules)} / {sum(len(module.lines) for module in modules) / 1000:.1f}K"
    )
    assert rows["package cycles in harnessgym"] == "1 (2 packages)"
    assert rows["public class names that stand more than once"] == "1"
