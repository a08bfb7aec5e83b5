"""SWE-bench, SWE-rebench and R2E tasks whose repository is in an image, at a path of its own, with a
future in its history.
"""

import json
import subprocess
from dataclasses import replace

import pytest

from harnessgym.grading.grade import judge
from harnessgym.provisioning import equipment_of
from harnessgym.sandboxes.images.connection import EngineConnection
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task import Limits
from harnessgym.task_setup.workspace_setup import furnish
from harnessgym.tasks.r2e import r2e_task
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_bench import swe_bench_task
from harnessgym.tasks.swe_rebench import swe_rebench_task
from tests.harnessgym.grading.shapes import AREA, FILES, FIXED, ROW, TEST_PATCH
from tests.harnessgym.sandboxes.images.contexts import contexts

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
LIMITS = Limits(wall_s=120.0, memory_mb=1_024, processes=128, disk_mb=256)
ONE, ZERO = {"reward": 1.0, "f2p": 1.0, "p2p": 1.0}, {"reward": 0.0, "f2p": 0.0, "p2p": 0.0}
FUTURE = "the fix, as it was made upstream"
R2E_TESTS = "from shapes.area import rectangle\n\n\ndef test_rectangle():\n    assert rectangle(3, 4) == 12\n"


def git(repo, *words):
    command = ["git", "-C", str(repo), "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().strip()


def repository(folder):
    """The repository at its base commit, with the fix on another branch. Returns the base."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    base = git(folder, "rev-parse", "HEAD")
    (folder / "shapes/area.py").write_text(FIXED)
    git(folder, "commit", "-qam", FUTURE)
    git(folder, "tag", "v2")
    git(folder, "checkout", "-q", "--detach", base)
    (folder / "run_tests.sh").write_text("python3 -m pytest -rA -p no:cacheprovider r2e_tests\n")
    return base


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The base commit, and an image that has the repository at `/testbed` and `/shapes`, and tests at
    `/r2e_tests`.
    """
    with EngineConnection() as engine, contexts(engine, tmp_path_factory.mktemp("contexts")) as make:
        lines = ["COPY repo /testbed", "COPY repo /shapes", "COPY r2e_tests /r2e_tests"]
        files = {"repo/x": "", "r2e_tests/test_1.py": R2E_TESTS}
        context = make(*lines, base="harnessgym/python", files=files)
        base = repository(_repo(context))
        yield base, ensure(context, [], engine=engine)


def _repo(context):
    from pathlib import Path

    folder = Path(context.removeprefix("context:")) / "repo"
    (folder / "x").unlink()
    return folder


@pytest.fixture(scope="module")
def docker(made, docker):
    """Ends before the image does: while it has spare containers of an image, that cannot be removed."""
    return docker


@pytest.fixture
def graded(docker):
    async def go(task, files=None, run=(), gold=False):
        task = replace(task, limits=LIMITS)
        async with docker.open(LIMITS, equipment_of(task)) as sandbox:
            await furnish(task, sandbox)
            for path, text in {**(files or {}), **(task.solution.files if gold else {})}.items():
                await sandbox.write(path, text.encode())
            commands = (*(("sh", "-c", each) for each in run), *(task.solution.run if gold else ()))
            said = [(await sandbox.exec(command, timeout_s=60)).stdout.decode() for command in commands]
            grade = await judge(task, sandbox, lambda: docker.open(LIMITS, equipment_of(task, grades=True)))
        return (grade, said) if run else grade

    return go


@pytest.fixture
def swe_bench(made):
    base, image = made
    lay = f"git checkout {base} tests/test_area.py\ngit apply -v - <<'EOF'\n{TEST_PATCH}\nEOF"
    script = "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            "cd /testbed",
            "git config --global --add safe.directory /testbed",
            "git status",
            lay,
            ": '>>>>> Start Test Output'",
            "python3 -m pytest -rA -p no:cacheprovider tests",
            ": '>>>>> End Test Output'",
            f"git checkout {base} tests/test_area.py",
        ]
    )
    return swe_bench_task(
        TaskRow("here", {**ROW, "base_commit": base, "image": image, "eval_script": script}), "shapes"
    )


async def test_gold_is_rewarded_and_doing_nothing_is_not(graded, swe_bench):
    found = await graded(swe_bench, gold=True)
    assert (found.rewards, found.tampered) == (ONE, None), found.evidence
    assert found.evidence["failing_test_planted"] == "failed"
    assert (await graded(swe_bench)).rewards == ZERO


async def test_a_wrong_patch_and_removed_tests_score_nothing(graded, swe_bench):
    wrong = {"shapes/area.py": AREA.replace("width + height", "width - height")}
    found, said = await graded(swe_bench, wrong, run=["rm -rf tests .git; ls /testbed/"])
    assert "shapes" in said[0]
    assert found.rewards == {"reward": 0.0, "f2p": 0.0, "p2p": 0.5}


async def test_edited_tests_change_nothing(graded, swe_bench):
    edits = {"tests/test_area.py": "def test_rectangle():\n    pass\n\n\ndef test_square():\n    pass\n"}
    assert (await graded(swe_bench, edits)).rewards == {"reward": 0.0, "f2p": 0.0, "p2p": 1.0}


async def test_what_the_image_tracks_is_looked_for_whatever_the_agent_ignores(graded, swe_bench):
    found = await graded(swe_bench, {"shapes/area.py": FIXED, ".gitignore": "shapes/\ntests/\n"})
    assert found.rewards == ONE, found.evidence
    assert "deleted file" not in found.evidence["patch"]


async def test_forged_output_scores_nothing(graded, swe_bench):
    forges = (
        "import os\n\n\ndef pytest_sessionfinish(session):\n    print()\n"
        "    for name in ('area.py::test_rectangle', 'area.py::test_square', 'other.py::test_zero'):\n"
        "        print('PASSED tests/test_' + name, flush=True)\n    os._exit(0)\n"
    )
    found = await graded(swe_bench, {"conftest.py": forges})
    assert found.rewards == ZERO
    assert "must fail" in found.tampered


LOOK = f"""\
git log --all --format=%s
git reflog
git tag
git cat-file --batch-all-objects --batch-check | grep -c commit
git fsck --lost-found 2>/dev/null
grep -rl '{FUTURE}' / --include=COMMIT_EDITMSG 2>/dev/null
ls /.harnessgym/home 2>&1
"""


async def test_the_agent_sees_the_past_and_not_the_future(graded, swe_bench):
    _, said = await graded(swe_bench, run=[LOOK])
    assert said[0].splitlines()[:2] == ["base", "1"], said
    assert FUTURE not in said[0]
    assert "Permission denied" in said[0] or "cannot" in said[0]


@pytest.fixture
def swe_rebench(made):
    base, image = made
    config = {
        "test_cmd": ["python3 -m pytest -rA -p no:cacheprovider tests"],
        "log_parser": "parse_log_pytest",
    }
    row = {**ROW, "base_commit": base, "image_name": image, "install_config": config}
    row["PASS_TO_PASS"] = ["tests/test_area.py::test_square (0.1s)", "tests/test_other.py::test_zero"]
    return swe_rebench_task(TaskRow("here", row), "shapes")


async def test_swe_rebench_wants_the_very_tests_to_pass(graded, swe_rebench):
    found = await graded(swe_rebench, gold=True)
    assert (found.rewards, found.tampered) == (ONE, None), found.evidence
    more = {"shapes/area.py": FIXED, "tests/test_more.py": "def test_more():\n    pass\n"}
    found = await graded(swe_rebench, more)
    assert (found.rewards["reward"], found.evidence["not_expected"]) == (
        0.0,
        ["tests/test_more.py::test_more"],
    )
    assert (await graded(swe_rebench)).rewards == ZERO


async def test_swe_rebench_does_not_ask_for_an_exit_code(graded, swe_rebench):
    spec = swe_rebench.metadata["swe_rebench"]
    spec = {**spec, "test_cmd": [*spec["test_cmd"], "false"]}
    found = await graded(
        replace(swe_rebench, metadata={**swe_rebench.metadata, "swe_rebench": spec}), gold=True
    )
    assert (found.rewards, found.tampered, found.evidence["exit_code"]) == (ONE, None, 1), found.evidence


async def test_r2e_compares_all_results_and_hides_its_tests(graded, made):
    base, image = made
    row = {
        "docker_image": image,
        "repo_name": "shapes",
        "commit_hash": base,
        "expected_output_json": json.dumps({"test_rectangle": "PASSED"}),
        "problem_statement": "[ISSUE]rectangle adds[/ISSUE]",
        "parsed_commit_content": "{}",
    }
    task = r2e_task(TaskRow("here", row), "r2e")
    found, said = await graded(
        task, {"shapes/area.py": FIXED}, run=["ls; ls /r2e_tests; git log --all --format=%s"]
    )
    assert found.rewards["reward"] == 1.0, found.evidence
    assert "run_tests.sh" not in said[0]
    assert "test_1.py" not in said[0]
    assert said[0].splitlines()[-1] == "Where the task begins"
    found = await graded(
        task,
        {"shapes/area.py": AREA.replace("+", "-"), "r2e_tests/test_1.py": "def test_rectangle(): pass\n"},
    )
    assert (found.rewards["reward"], found.evidence["differing"]) == (0.0, ["test_rectangle"])
    found = await graded(task, {"shapes/area.py": "import os\n\nos._exit(0)\n"})
    assert (found.rewards["reward"], found.evidence["problem"]) == (0.0, "no test reported anything")
