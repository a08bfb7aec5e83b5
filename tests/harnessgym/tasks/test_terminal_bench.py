"""terminal-bench folders: which are recognised, what becomes of each key, and that one malformed task
leaves the rest.
"""

import re
import shutil
from pathlib import Path

import pytest

from harnessgym.grading.verifiers.terminal_bench import KEY
from harnessgym.tasks.payload import payload_of, task_of
from harnessgym.tasks.source import recognised
from harnessgym.tasks.terminal_bench import TerminalBench

SAMPLES = Path(__file__).parent / "samples" / "terminal_bench"


@pytest.fixture(scope="module")
def samples():
    return {task.id: task for task in TerminalBench().read(SAMPLES).tasks}


def test_the_samples_are_recognised_and_read():
    loaded = recognised(SAMPLES).read(SAMPLES)
    assert loaded.problems == ()
    assert [task.id for task in loaded.tasks] == ["terminal_bench/hello-file", "terminal_bench/typed-lines"]
    assert isinstance(recognised(SAMPLES / "hello-file"), TerminalBench)
    assert any("typed-lines: task.yaml: canary is not known" in note for note in loaded.notes)


def test_a_task_yaml_alone_is_another_formats(tmp_path):
    (tmp_path / "task.yaml").write_text("instruction: x\n")
    assert not TerminalBench().recognises(tmp_path)
    assert not TerminalBench().recognises(tmp_path / "absent")


def test_every_part_has_its_place(samples):
    task = samples["terminal_bench/hello-file"]
    assert task.instruction.startswith("Create a file called hello.txt")
    assert task.image == f"context:{SAMPLES / 'hello-file'}"
    assert (task.home, task.limits.wall_s, task.env) == ("/app", 120.0, {"TEST_DIR": "/tests"})
    spec = task.metadata[KEY]
    assert (spec["script"], spec["timeout_s"], spec["env"]["TEST_DIR"]) == ("run-tests.sh", 90.0, "/tests")
    assert set(task.metadata["test_files"]) == {"run-tests.sh", "test_outputs.py"}
    assert task.grading.install[0][-1] == "pytest==8.4.1"
    assert task.metadata["yaml"]["tags"] == ["files"]
    assert task_of(payload_of(task)) == task


def test_a_solution_may_be_lines_that_are_typed(samples):
    task = samples["terminal_bench/typed-lines"]
    text = task.solution.files[".harnessgym-solution/solution.sh"]
    assert text == "#!/bin/bash\nsort lines.txt > sorted.txt\ncat sorted.txt\n"
    assert task.grading.install == ()
    assert task.metadata["yaml"]["canary"] == "kept"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"task.yaml": "instruction: [\n"}, r"task\.yaml cannot be read"),
        ({"task.yaml": "- x\n"}, "mapping"),
        ({"task.yaml": "author_name: x\n"}, "instruction: this setting is required"),
        ({"task.yaml": "instruction: x\nparser_name: swelancer\n"}, "parser_name.*swelancer"),
        ({"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"}, "run_tests_in_same_shell"),
        ({"task.yaml": "instruction: x\nmax_agent_timeout_sec: 0\n"}, "max_agent_timeout_sec"),
        ({"docker-compose.yaml": "services:\n  client: {image: x}\n  web: {image: y}\n"}, "web"),
        ({"docker-compose.yaml": None, "Dockerfile": None}, "Dockerfile"),
        ({"solution.sh": None, "solution.yaml": "- echo\n"}, r"solution\.yaml"),
    ],
)
def test_mistakes_are_named_and_leave_the_rest(tmp_path, change, named):
    shutil.copytree(SAMPLES, tmp_path / "set")
    for name, text in change.items():
        (tmp_path / "set" / "hello-file" / name).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "set" / "hello-file" / name).write_text(text)
    loaded = TerminalBench().read(tmp_path / "set")
    assert [task.id for task in loaded.tasks] == ["set/typed-lines"]
    (problem,) = loaded.problems
    assert re.search(named, problem, re.DOTALL), problem
