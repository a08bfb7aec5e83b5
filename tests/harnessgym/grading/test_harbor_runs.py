"""Harbor and terminal-bench tasks in containers: gold is rewarded, nothing is not, and only what tests
write is a reward.
"""

import shutil
from pathlib import Path

import pytest

from environments.swe import SweTasks
from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
from harnessgym.task import Solution
from harnessgym.tasks.harbor import Harbor
from harnessgym.tasks.harbor_writing import HarborWriter
from harnessgym.tasks.native import read_task
from harnessgym.tasks.source import task_format

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
SAMPLES = Path(__file__).parents[1] / "tasks" / "samples"
SHIPPED = Path(__file__).parents[3] / "environments" / "shell_tasks" / "tasks"
ONE_STEP = [
    "harbor/count-words",
    "harbor/separate-verifier",
    "harbor/uvx-pytest",
    "terminal_bench/typed-lines",
]


def sample(name, format_name=None):
    (task,) = task_format(format_name or name.split("/")[0]).read(SAMPLES / name).tasks
    return task


@pytest.fixture
def folder(tmp_path):
    """A Harbor task in our image whose test script is given."""

    def write(script, toml="", **files):
        texts = {
            "task.toml": (
                '[environment]\ndocker_image = "harnessgym/python"\nworkdir = "/app"\nmemory_mb = '
                f"512\n{toml}"
            ),
            "instruction.md": "Do it.",
            "tests/test.sh": f"#!/bin/sh\n{script}\n",
            **files,
        }
        for path, text in texts.items():
            (tmp_path / "task" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "task" / path).write_text(text)
        return tmp_path / "task"

    return write


def read(folder, *, shared=False):
    loaded = Harbor(shared=shared).read(folder)
    assert loaded.problems == ()
    return loaded.tasks[0]


async def left_by(backend, task, script):
    """The result when this was the agent's work."""

    async def act(sandbox):
        done = await sandbox.exec(["sh", "-c", script], timeout_s=60)
        assert done.ok, done.stderr

    return await ScriptedAgent(backend).act(task, "agent", act)


@pytest.mark.parametrize("name", ONE_STEP)
async def test_samples_reward_gold_and_not_nothing(docker, name):
    task = sample(name)
    nothing = await ScriptedAgent(docker).nothing(task)
    assert (nothing.reward, nothing.error) == (0.0, None)
    gold = await ScriptedAgent(docker).gold(task)
    assert (gold.reward, gold.error, gold.tampered) == (1.0, None, None), gold.evidence
    assert gold.evidence["mode"] == "separate"
    assert "failed_hooks" not in gold.evidence


async def test_shared_grading_is_said_in_the_evidence(docker):
    gold = await ScriptedAgent(docker).gold(sample("harbor/count-words", "harbor_shared"))
    assert gold.reward == 1.0
    assert gold.evidence["mode"] == "shared"
    assert "warning" in gold.evidence


async def test_a_shipped_task_written_and_read_rewards_gold_and_not_nothing(docker, tmp_path):
    HarborWriter().write(read_task(SHIPPED / "top-words"), tmp_path)
    task = read(tmp_path)
    assert (await ScriptedAgent(docker).nothing(task)).reward == 0.0
    gold = await ScriptedAgent(docker).gold(task)
    assert (gold.reward, gold.error) == (1.0, None), gold.evidence


OVERWRITTEN = """
find . -name 'test*.py' | while IFS= read -r path; do echo 'def test_it(): pass' > "$path"; done
for folder in . tests src; do mkdir -p $folder; echo 'import os; os._exit(0)' > $folder/sitecustomize.py; done
printf '%s\\n' 'import pytest' '@pytest.hookimpl(hookwrapper=True)' 'def pytest_runtest_makereport(item, call):' \
    '    out = yield' '    out.get_result().outcome = "passed"' | tee conftest.py > tests/conftest.py
printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini
"""
"""Everything that an agent could think a test run reads."""
WRITES_THE_REWARD = """
cat > forge.py <<'END'
import os, subprocess, time
loop = "while :; do echo 1 > /logs/verifier/reward.txt; echo '{\\"reward\\": 1}' > /logs/verifier/reward.json; sleep 0.05; done"
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
subprocess.Popen(["sh", "-c", loop], start_new_session=True, **quiet)
time.sleep(1)
END
cat inflection/__init__.py >> forge.py && mv forge.py inflection/__init__.py
"""
"""Code under test that starts what outlives it."""
LEAVES = "echo 'import os; os._exit(0)' > inflection/__init__.py"
BREAKS_PYTEST = """
cat >> inflection/__init__.py <<'END'
import sys
sys.modules["_pytest.runner"].check_interactive_exception = None
sys.modules["_pytest.reports"].TestReport.from_item_and_call = None
END
"""
"""Code under test that breaks pytest itself."""


@pytest.fixture
def written_swe(tmp_path):
    """A shipped SWE task, written and read back."""

    def write(name):
        (before,) = [
            task
            for split in ("train", "test")
            for task in SweTasks().tasks(split)
            if task.id == f"swe/{name}"
        ]
        HarborWriter().write(before, tmp_path)
        return read(tmp_path)

    return write


@pytest.mark.parametrize("name", ["inflection-004", "semver-001"])
async def test_a_shipped_swe_task_written_and_read_rewards_gold_and_not_nothing(docker, written_swe, name):
    task = written_swe(name)
    nothing = await ScriptedAgent(docker).nothing(task)
    assert (nothing.reward, nothing.error) == (0.0, None), nothing.evidence
    assert "of" in nothing.evidence["output"]
    gold = await ScriptedAgent(docker).gold(task)
    assert (gold.reward, gold.error) == (1.0, None), gold.evidence


@pytest.mark.parametrize(
    "script",
    [OVERWRITTEN, WRITES_THE_REWARD, LEAVES, BREAKS_PYTEST],
    ids=["overwritten", "writes", "leaves", "breaks"],
)
async def test_a_written_swe_task_is_not_solved_by_what_is_no_repair(docker, written_swe, script):
    result = await left_by(docker, written_swe("inflection-004"), script)
    assert (result.reward, result.error) == (0.0, None), result.evidence


async def test_what_the_agent_leaves_as_a_result_is_gone(docker, folder):
    task = read(
        folder("[ -e /logs/artifacts/kept ] && [ ! -e /tests/mine ] && echo 0.5 > /logs/verifier/reward.txt")
    )
    forged = """
        echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json; echo x > /logs/artifacts/kept
        printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh; touch /tests/mine
        ln -s /etc/passwd /logs/artifacts/link
        setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.json; sleep 0.05; done' >/dev/null 2>&1 </dev/null &
    """
    result = await left_by(docker, task, forged)
    assert (result.reward, result.error) == (0.5, None)


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("exit 0", "neither"),
        ("echo 1 > /tmp/r; ln -s /tmp/r /logs/verifier/reward.txt", "is a link"),
        ("mkfifo /logs/verifier/reward.json", "pipe"),
        ("head -c 70000 /dev/zero | tr '\\0' 1 > /logs/verifier/reward.txt", "larger"),
        ("echo '{\"reward\": 1e300}' > /logs/verifier/reward.json", "outside of the range 0 to 1"),
        ("echo 2 > /logs/verifier/reward.txt", "outside of the range 0 to 1"),
    ],
)
async def test_a_result_that_is_none_is_no_reward(docker, folder, script, named):
    result = await ScriptedAgent(docker).nothing(read(folder(script)))
    assert result.reward is None
    assert named in result.error


async def test_a_task_that_declares_its_range_may_give_more(docker, folder):
    toml = "[metadata]\nreward_range = [-3, 3]\n"
    result = await ScriptedAgent(docker).nothing(read(folder("echo -2.5 > /logs/verifier/reward.txt", toml)))
    assert (result.reward, result.error) == (-2.5, None)


async def test_what_the_script_asks_for_and_is_not_there_is_no_reward(docker, tmp_path):
    shutil.copytree(SAMPLES / "harbor" / "uvx-pytest", tmp_path / "task")
    script = tmp_path / "task" / "tests" / "test.sh"
    script.write_text(script.read_text().replace("uvx", "uv publish\nuvx", 1))
    result = await ScriptedAgent(docker).gold(read(tmp_path / "task"))
    assert result.reward is None
    assert "test.sh asked for uv publish" in result.error


async def test_the_exit_code_is_recorded_and_ignored(docker, folder):
    result = await ScriptedAgent(docker).nothing(
        read(folder("echo 0.25 > /logs/verifier/reward.txt; echo said; exit 9"))
    )
    assert result.reward == 0.25
    assert result.evidence["exit_code"] == 9
    assert result.evidence["output"] == "said\n"
    assert result.evidence["root"] is True


async def test_tests_that_do_not_end_are_reward_nothing(docker, folder):
    script = "echo 1 > /logs/verifier/reward.txt; sleep 60"
    result = await ScriptedAgent(docker).nothing(read(folder(script, "[verifier]\ntimeout_sec = 1.0\n")))
    assert (result.reward, result.evidence["timed_out"]) == (0.0, True)


async def test_tests_run_as_who_the_task_says_with_its_variables(docker, folder):
    script = 'cd /app && [ "$(id -u)" = 1000 ] && [ "$WORD" = yes ] && echo 1 > /logs/verifier/reward.txt'
    toml = '[verifier]\nuser = "agent"\nenv = { WORD = "${HARNESSGYM_ABSENT:-yes}" }\n'
    assert (await ScriptedAgent(docker).nothing(read(folder(script, toml)))).reward == 1.0


async def test_the_environment_reaches_the_agent(docker, folder):
    task = read(folder("cp /app/x /logs/verifier/reward.txt", "[environment.env]\nPART = '0.75'\n"))
    assert (await left_by(docker, task, 'printf %s "$PART" > x')).reward == 0.75


async def test_a_healthcheck_is_waited_for(docker, folder):
    toml = "[environment.healthcheck]\ncommand = 'ls /tmp/tried || { touch /tmp/tried; false; }'\ninterval_sec = 0\nretries = 2\n"
    assert (
        await ScriptedAgent(docker).nothing(read(folder("echo 0 > /logs/verifier/reward.txt", toml)))
    ).error is None
    failing = read(folder("true", toml.replace("retries = 2", "retries = 1")))
    assert "healthcheck failed 1 times" in (await ScriptedAgent(docker).nothing(failing)).error


async def test_a_solution_that_is_no_script_of_a_shell_is_run_too(docker, folder):
    where = folder("cp /app/x /logs/verifier/reward.txt", **{"solution/solve.sh": "echo 1 > x\n"})
    task = read(where)
    assert isinstance(task.solution, Solution)
    assert (await ScriptedAgent(docker).gold(task)).reward == 1.0


async def test_steps_are_each_graded_by_their_own_tests_and_the_last_is_the_tasks(docker):
    task = sample("harbor/two-steps")
    gold = await ScriptedAgent(docker).gold(task)
    assert (gold.reward, gold.error) == (1.0, None), gold.evidence
    only_first = await left_by(docker, task, "echo 9 > sum.txt")
    assert (only_first.reward, only_first.error) == (0.0, None)
    assert (await ScriptedAgent(docker).nothing(task)).reward == 0.0


async def test_an_agent_finds_neither_tests_nor_results_of_earlier_steps_where_it_is_graded(docker):
    task, seen = sample("harbor/two-steps", "harbor_shared"), []

    async def act(sandbox):
        looked = await sandbox.exec(
            ["find", "/tests", "/logs/verifier", "/tmp/harnessgym-tests", "-mindepth", "1"], timeout_s=60
        )
        seen.append(looked.stdout.decode())
        assert (
            await sandbox.exec(
                ["sh", "-c", "echo $((9 + 6 * $1)) > sum.txt", "sh", str(len(seen) - 1)], timeout_s=60
            )
        ).ok

    result = await ScriptedAgent(docker).act(task, "agent", act)
    assert (result.reward, result.error, result.evidence["steps"][0]["evidence"]["mode"]) == (
        1.0,
        None,
        "shared",
    )
    assert seen == ["", ""]
