"""Scripts of Harbor tasks, run by a real shell: set-up, healthcheck and what a solution is made of."""

import os
import subprocess
import time

import pytest

from harnessgym.errors import TaskError
from harnessgym.file_bundle import Bundle, unpacked
from harnessgym.tasks.harbor_scripts import instruction, solution, solved_by, waiting, working_files
from harnessgym.tasks.harbor_table import Healthcheck


@pytest.fixture
def folder(tmp_path):
    """A folder with the given files; `executable` ones can be run."""

    def write(files, executable=()):
        place = tmp_path / "folder"
        for name, data in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
            path.chmod(0o755 if name in executable else 0o644)
        return place

    return write


@pytest.fixture
def laid(tmp_path):
    """Lays files into a workspace and runs commands there, as a sandbox does."""

    def lay(files, commands):
        place = tmp_path / "workspace"
        place.mkdir()
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        for command in commands:
            subprocess.run(command, cwd=place, check=True, capture_output=True)
        return place

    return lay


def waited(cwd, **table):
    """Runs the commands of a healthcheck."""
    (command,) = waiting(Healthcheck(**table))
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_an_instruction_is_stripped(folder):
    assert instruction(folder({"instruction.md": "\n Do it.\n\n"}), needed=True) == "Do it."


def test_a_missing_instruction_is_an_error_only_where_it_is_needed(tmp_path):
    assert instruction(tmp_path, needed=False) == ""
    with pytest.raises(TaskError, match=r"instruction\.md is not there\. Write what the agent is to do\."):
        instruction(tmp_path, needed=True)


def test_an_instruction_of_white_space_is_empty(folder):
    with pytest.raises(TaskError, match=r"instruction\.md is empty"):
        instruction(folder({"instruction.md": " \n"}), needed=True)


def test_files_of_a_working_folder_are_laid_and_stay_executable(folder, laid):
    files, setup = working_files(folder({"a.txt": "1\n", "bin/run": "#!/bin/sh\n"}, {"bin/run"}))
    place = laid(files, setup.run)
    assert (place / "a.txt").read_text() == "1\n"
    assert os.access(place / "bin/run", os.X_OK)
    assert not os.access(place / "a.txt", os.X_OK)


def test_binary_files_of_a_working_folder_are_unpacked_before_its_setup(folder, laid):
    script = "cp picture.png copy.png\n"
    files, setup = working_files(folder({"picture.png": b"\x89PNG\xff", "setup.sh": script}))
    place = laid(files, setup.run)
    assert (place / "copy.png").read_bytes() == b"\x89PNG\xff"
    assert sorted(path.name for path in place.iterdir()) == ["copy.png", "picture.png", "setup.sh"]


def test_a_binary_file_can_be_made_executable(folder, laid):
    files, setup = working_files(folder({"tool": b"\x7fELF\xff"}, {"tool"}))
    assert os.access(laid(files, setup.run) / "tool", os.X_OK)


def test_setup_comes_before_the_healthcheck(folder, laid):
    check = waiting(Healthcheck(command="test -f made.txt", retries=1))
    files, setup = working_files(folder({"setup.sh": "echo 1 > made.txt\n"}), *check)
    assert setup.run[-1] == check[0]
    assert (laid(files, setup.run) / "made.txt").read_text() == "1\n"


def test_an_empty_working_folder_needs_no_commands(tmp_path):
    files, setup = working_files(tmp_path / "absent")
    assert (files, setup.run) == ({}, ())


def test_without_a_healthcheck_nothing_is_waited_for():
    assert waiting(None) == ()


def test_a_healthcheck_that_succeeds_is_run_once(tmp_path):
    assert waited(tmp_path, command="echo x >> runs").returncode == 0
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_healthcheck_is_repeated_until_it_succeeds(tmp_path):
    command = "echo x >> runs; test $(wc -l < runs) -ge 3"
    assert waited(tmp_path, command=command, interval_sec=0, retries=5).returncode == 0
    assert (tmp_path / "runs").read_text() == "x\n" * 3


def test_a_healthcheck_fails_after_its_retries(tmp_path):
    done = waited(tmp_path, command="echo x >> runs; false", interval_sec=0, retries=2)
    assert done.returncode == 1
    assert "the healthcheck failed 2 times: echo x >> runs; false" in done.stderr
    assert (tmp_path / "runs").read_text() == "x\n" * 2


def test_failures_in_the_start_period_do_not_count(tmp_path):
    command = "echo x >> runs; test $(wc -l < runs) -ge 4"
    done = waited(
        tmp_path, command=command, interval_sec=0, retries=1, start_period_sec=60, start_interval_sec=0
    )
    assert done.returncode == 0
    assert (tmp_path / "runs").read_text() == "x\n" * 4


def test_a_healthcheck_that_hangs_is_ended_at_its_timeout(tmp_path):
    began = time.monotonic()
    done = waited(tmp_path, command="exec sleep 60", timeout_sec=0.1, retries=1)
    assert done.returncode == 1
    assert time.monotonic() - began < 30


def test_a_folder_without_solve_sh_has_no_solution(folder):
    assert solution(folder({"notes.md": "x"}), {}) is None


def test_a_solution_has_its_files_script_and_environment(folder):
    files = {"solve.sh": "#!/bin/sh\n", "data/in.bin": b"\xff\x00", "tool.py": "x = 1\n"}
    made = solution(folder(files, {"tool.py"}), {"ANSWER": "a b", "N": "1"})
    assert made.files[".harnessgym-solution/tool.py"] == "x = 1\n"
    assert unpacked(made.files[".harnessgym-solution/.harnessgym-packed"]) == {"data/in.bin": b"\xff\x00"}
    ((shell, option, _, name, script, executable, *env),) = made.run
    assert (shell, option, name, script) == ("sh", "-c", "sh", "solve.sh")
    assert executable == "tool.py\n"
    assert env == ["ANSWER=a b", "N=1"]


def test_a_solution_of_texts_alone_has_nothing_packed():
    made = solved_by(Bundle({"a.sh": "true\n"}), "a.sh", {})
    assert made.files == {".harnessgym-solution/a.sh": "true\n"}
