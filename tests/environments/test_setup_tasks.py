"""The shipped set-up tasks: gold makes everything work, doing nothing nothing, and stubs count for
nothing.
"""

from contextlib import asynccontextmanager

import pytest

from environments.setup_tasks import SetupTasks
from environments.setup_tasks.works import Search, Shipped, imported, modules_below
from harnessgym.errors import TaskError
from harnessgym.grading.grade import judge
from harnessgym.registry import load
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task_setup.workspace_setup import furnish
from harnessgym.tasks.source import task_set

TASKS = {
    task.id.removeprefix("setup/"): task for split in ("train", "test") for task in SetupTasks().tasks(split)
}
NOTHING = {"reward": 0.0, "imports": 0.0, "collected": 0.0}
ALL = {"reward": 1.0, "imports": 1.0, "collected": 1.0}


@asynccontextmanager
async def bubblewrap(tmp_path):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


@asynccontextmanager
async def docker(tmp_path):
    ensure(DockerSettings().image, ())
    async with Docker(DockerSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


BACKENDS = [
    pytest.param(bubblewrap, TASKS, marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param(
        docker, ("missing-module", "editable-install", "local-wheels"), marks=pytest.mark.docker, id="docker"
    ),
]
"""In containers, those whose gold uses what an image may lack."""


async def graded(backend, task, files=None, run=()):
    async with backend.open(task.limits) as sandbox:
        await furnish(task, sandbox)
        for path, text in (files or {}).items():
            await sandbox.write(path, text.encode())
        for command in run:
            done = await sandbox.exec(command, timeout_s=120)
            assert done.ok, done.stderr
        return await judge(task, sandbox, lambda: backend.open(task.limits, Equipment(proxy=False)))


@pytest.mark.anyio
@pytest.mark.parametrize(("open_backend", "names"), BACKENDS)
async def test_gold_scores_1_and_doing_nothing_0(tmp_path, open_backend, names):
    async with open_backend(tmp_path) as backend:
        for task in map(TASKS.__getitem__, names):
            gold = await graded(backend, task, run=task.solution.run)
            assert (gold.rewards, gold.tampered) == (ALL, None), (task.id, gold)
            nothing = await graded(backend, task)
            assert nothing.rewards["reward"] == nothing.rewards["imports"] == 0.0, (task.id, nothing)


STUB = "class Any:\n    def __getattr__(self, name):\n        return self\n    def __call__(self, *rest):\n        return self\n"
HERE = 'export PYTHONPATH="$PWD/lib"\n'
PATCH = (
    "import _pytest.main, os, sys\nprint('tests: all')\nsys.modules['__main__']._import = lambda name: ''\n"
)
HOOKS = ("sitecustomize", "conftest", "pytest", "dataclasses")
EMPTY = "def test_one_line(): pass\ndef test_no_people(): pass\ndef test_width(): pass\n"
CHEATS = {
    "a stub of the missing package": {"env.sh": HERE, "lib/tablefmt/__init__.py": STUB, "lib/tablefmt/cells.py": STUB},
    "a stub of a part of it": {
        "env.sh": 'export PYTHONPATH="$PWD/lib:$PWD/wheels/tablefmt-1.2.0/src"\n',
        "lib/tablefmt/__init__.py": TASKS["missing-module"].files["wheels/tablefmt-1.2.0/src/tablefmt/__init__.py"],
        "lib/tablefmt/cells.py": "width = pad = print\n",
    },
    "sources that import nothing": {"repo/roster/report.py": "def report(people):\n    return ''\n"},
    "tests that need nothing": {"repo/tests/test_report.py": EMPTY, "repo/tests/test_cells.py": EMPTY},
    "hooks and start-up files": {
        "env.sh": HERE,
        **{f"{folder}/{name}.py": PATCH for folder in ("lib", "repo") for name in HOOKS},
        ".venv/lib/python3.11/site-packages/hook.pth": f"import sys; exec({PATCH!r})\n",
    },
    "a compiled module before the source": {
        "env.sh": 'export PYTHONPATH="$PWD/lib:$PWD/wheels/tablefmt-1.2.0/src"\n',
        "lib/tablefmt.so": "",
    },
    "an env.sh that prints": {"env.sh": "printf '/workspace\\0/usr/lib\\0'; exit 0\n"},
    "a link in the place of the repository": {"env.sh": "true"},
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_stubs_hooks_and_changed_tests_count_for_nothing(tmp_path):
    task = TASKS["missing-module"]
    async with bubblewrap(tmp_path) as backend:
        for name, files in CHEATS.items():
            run = [("sh", "-c", "mv repo other && ln -s other repo")] if "link" in name else []
            grade = await graded(backend, task, files, run)
            assert grade.rewards["reward"] == 0.0, (name, grade)


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_part_of_the_work_is_part_of_the_reward(tmp_path):
    task = TASKS["editable-install"]
    async with bubblewrap(tmp_path) as backend:
        grade = await graded(backend, task, {"env.sh": 'export PYTHONPATH="$PWD/repo/packages/core/src"\n'})
        assert grade.rewards == {
            "reward": pytest.approx(2 / 9),
            "imports": pytest.approx(2 / 3),
            "collected": pytest.approx(1 / 3),
        }
        assert "queueservice.worker was not found" in grade.evidence["works"]["detail"]
        task = TASKS["local-wheels"]
        old = (
            "sh",
            "-c",
            (
                "python3 -m pip install -q --no-index --no-deps --target lib wheels/palette-1.4*.whl "
                "wheels/hexcolor*.whl"
            ),
        )
        grade = await graded(backend, task, {"env.sh": HERE}, [old])
        assert grade.rewards["imports"] == 0.25, grade
        assert "palette is not what came with the task" in grade.evidence["works"]["detail"]


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_wrong_settings_are_told(tmp_path):
    settings = '{"currency": "eur", "precision": 2, "accounts": []}'
    files = {"settings.json": settings, "env.sh": 'export LEDGER_SETTINGS="$PWD/settings.json"\n'}
    async with bubblewrap(tmp_path) as backend:
        grade = await graded(backend, TASKS["needs-config"], files)
    assert grade.rewards == NOTHING
    assert "currency must be three capital letters" in grade.evidence["works"]["detail"]


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_the_folder_alone_says_how_to_name_the_set(tmp_path):
    (task,) = [
        task
        for task in task_set("environments/setup_tasks/tasks").tasks("train")
        if task.id == "setup/src-layout"
    ]
    async with bubblewrap(tmp_path) as backend:
        with pytest.raises(TaskError, match="part of the task set `setup`"):
            await graded(backend, task)


def test_the_set_is_registered_and_the_same_each_time():
    tasks = load("task_set", "setup")()
    assert tasks.name == "setup"
    assert tasks.tasks("train")
    assert tasks.tasks("test")
    assert [task for split in ("train", "test") for task in tasks.tasks(split)] == list(TASKS.values())
    assert len(TASKS) == 8


def test_everything_that_is_counted_is_there():
    for task in TASKS.values():
        (check,) = task.metadata["tests"]
        shipped = [path.removeprefix("repo/tests/") for path in task.files if path.startswith("repo/tests/")]
        for test in check["tests"]:
            path, _, name = test.partition("::")
            assert path in shipped, test
            assert f"def {name}(" in task.files[f"repo/tests/{path}"], test
        sources = [
            text for path, text in task.files.items() if path.startswith("repo/") and path.endswith(".py")
        ]
        named = {name for text in sources for name in imported(text, "x")}
        assert set(check["imports"]) <= named | {"tablefmt.cells"}, (task.id, set(check["imports"]) - named)


def test_modules_are_looked_for_as_python_does(tmp_path):
    files = {
        "a/pkg/__init__.py": "from . import one\n",
        "a/pkg/one.py": "import json\n",
        "b/pkg/two.py": "X = 1\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shipped = {**modules_below(files, "a"), "pkg.two": Shipped("X = 1\n", package=False)}
    search = Search((tmp_path / "a", tmp_path / "b"), shipped)
    assert search.problem("import pkg.one") == ""
    assert (
        search.problem("from pkg import two") == "pkg.two was not found"
    )  # the first folder has the whole package
    assert Search((tmp_path / "b",), {"pkg.two": shipped["pkg.two"]}).problem("import pkg.two") == ""
    (tmp_path / "a/pkg/one.py").write_text("import json\n\n")
    assert search.problem("import pkg") == "pkg.one is not what came with the task"
    (tmp_path / "b/extra.py").write_text("")
    assert search.problem("import extra") == "extra did not come with the task"
    assert search.problem("import not_there, pytest, json.tool") == ""
