"""SWE-bench tasks from an agent's sandbox to a grade: the change alone counts, and nothing that was done
to its judges.
"""

import json
import shlex
from dataclasses import replace

import pytest

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.grade import judge
from harnessgym.grading.verifier import Verifier
from harnessgym.grading.verifiers.swe_bench import Prediction, grade_prediction, read_predictions
from harnessgym.provisioning import equipment_of
from harnessgym.registry import load
from harnessgym.task import Limits
from harnessgym.task_setup.workspace_setup import furnish
from tests.harnessgym.grading.shapes import AREA, FILES, FIXED, GOLD, SCRIPT, TEST_PATCH, TESTS, task_of

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
LIMITS = Limits(wall_s=120.0, memory_mb=1_024, processes=128, disk_mb=256)
ONE, ZERO = {"reward": 1.0, "f2p": 1.0, "p2p": 1.0}, {"reward": 0.0, "f2p": 0.0, "p2p": 0.0}


@pytest.fixture
def graded(bubblewrap):
    """Begins a task, lays files, runs commands, and judges what is there."""

    async def go(task, files=None, run=(), gold=False):
        task = replace(task, limits=LIMITS)
        async with bubblewrap.open(LIMITS, equipment_of(task)) as sandbox:
            await furnish(task, sandbox)
            for path, data in {**(files or {}), **(task.solution.files if gold else {})}.items():
                await sandbox.write(path, data if isinstance(data, bytes) else data.encode())
            for command in (*(("sh", "-c", each) for each in run), *(task.solution.run if gold else ())):
                done = await sandbox.exec(command)
                assert done.ok, done.stderr
            return await judge(
                task, sandbox, lambda: bubblewrap.open(LIMITS, equipment_of(task, grades=True))
            )

    return go


async def test_the_gold_patch_resolves_its_issue(graded):
    found = await graded(task_of(), gold=True)
    assert (found.rewards, found.tampered) == (ONE, None), found.evidence
    assert found.evidence["applied"] == "git apply --verbose"
    assert found.evidence["failing_test_planted"] == "failed"
    assert found.evidence["patch"].count("\n+") == GOLD.count("\n+")


async def test_no_change_and_a_wrong_one_score_nothing(graded):
    found = await graded(task_of())
    assert (found.rewards, found.evidence["problem"]) == (ZERO, "nothing was changed")
    found = await graded(
        task_of(), {"shapes/area.py": AREA.replace("width + height", "12").replace("side * side", "9")}
    )
    assert found.rewards == {"reward": 0.0, "f2p": 1.0, "p2p": 0.5}
    assert found.evidence["p2p_failed"] == ["tests/test_other.py::test_zero"]


async def test_tests_that_the_patch_has_are_the_tasks_own_whatever_became_of_them(graded):
    removed = [
        "rm -rf tests/test_area.py .git",
        "mkdir -p tests/test_area.py/x; touch tests/test_area.py/x/y",
    ]
    found = await graded(task_of(), {"shapes/area.py": FIXED}, run=removed)
    assert (found.rewards, found.evidence["tests_restored"]) == (ONE, ["tests/test_area.py"])
    only_tests = {"tests/test_area.py": TESTS + "\n\ndef test_rectangle():\n    pass\n"}
    assert (await graded(task_of(), only_tests)).rewards == {"reward": 0.0, "f2p": 0.0, "p2p": 1.0}


async def test_tests_that_the_patch_does_not_have_are_part_of_the_change(graded):
    found = await graded(task_of(), {"shapes/area.py": FIXED}, run=["rm tests/test_other.py"])
    assert (found.rewards["reward"], found.evidence["p2p_failed"]) == (
        0.0,
        ["tests/test_other.py::test_zero"],
    )


PRINTS = """\
import os, sys
print("PASSED tests/test_area.py::test_rectangle")
for said in (" End Test Output", " Test Exit Code: 0"):
    print(">>>>>" + said, flush=True)
"""
HIDES = """\
import os
import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    names = ["area.py::test_rectangle", "area.py::test_square", "other.py::test_zero"]
    print("\\n" + "\\n".join(f"PASSED tests/test_{name}" for name in names), flush=True)
    os._exit(CODE)
"""
PASSES = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    found = yield
    found.get_result().outcome = "passed"
"""


async def test_forged_markers_end_no_log(graded):
    found = await graded(task_of(), {"conftest.py": PRINTS})
    assert (found.rewards["reward"], found.tampered) == (0.0, None)


async def test_forged_results_over_a_failed_command_are_no_result(graded):
    found = await graded(task_of(), {"conftest.py": HIDES.replace("CODE", "1")})
    assert found.rewards == ZERO
    assert "exit code 1" in found.evidence["problem"]


@pytest.mark.parametrize(
    "conftest", [HIDES.replace("CODE", "0"), PASSES], ids=["leaves with 0", "makes all pass"]
)
async def test_forged_results_with_a_good_exit_code_are_tampering(graded, conftest):
    found = await graded(task_of(), {"conftest.py": conftest})
    assert found.rewards == ZERO
    assert "must fail" in found.tampered


BREAKS = "if ls tests/.ran; then exit 3; fi; touch tests/.ran; "
PIPED = "python3 -m pytest -rA -p no:cacheprovider tests"


async def test_a_second_run_that_breaks_off_is_no_verdict(graded):
    with pytest.raises(SandboxError, match="broke off: the tests' output has no beginning or no end"):
        await graded(task_of(eval_script=script(f"{BREAKS}{PIPED}")), gold=True)


@pytest.mark.parametrize("swallows", [" || true", " | cat; true", "\necho done"])
async def test_commands_that_cannot_fail_are_no_tampering(graded, swallows):
    found = await graded(task_of(eval_script=script(f"{PIPED}{swallows}")), gold=True)
    assert (found.rewards, found.tampered) == (ONE, None), found.evidence
    assert found.evidence["failing_test_planted"] == "failed"


LOOKS = """\

def test_rectangle():
    import os
    assert open("logo.bin", "rb").read() == bytes(range(256)) * 9
    assert open("logo.txt", "rb").read() == b"new\\r\\nlogo\\r\\n"
    assert os.access("run it.sh", os.X_OK)
    assert os.readlink("link") == "logo.txt"
    assert not os.path.exists("seen.log")
    assert rectangle(3, 4) == 12
"""
ATTRIBUTES = "* text=auto eol=lf\n*.txt filter=evil ident\n"
COMMITS = """\
chmod +x 'run it.sh'
ln -s logo.txt link
git config user.name a
git config user.email a@localhost
git config filter.evil.clean 'echo evil'
git add -A
git commit -qm x
"""


async def test_the_change_is_taken_byte_for_byte(graded):
    """Binary files, line ends, modes, links and spaces in names are carried; what git ignores and `.git`
    are not.
    """
    patch = TEST_PATCH.split("+\n")[0].replace("+1,9", f"+1,{5 + LOOKS.count(chr(10))}") + "".join(
        f"+{line}" for line in LOOKS.splitlines(keepends=True)
    )
    files = {
        "shapes/area.py": FIXED,
        "logo.bin": bytes(range(256)) * 9,
        "logo.txt": "new\r\nlogo\r\n",
        "seen.log": "x",
    }
    found = await graded(
        task_of(test_patch=patch),
        {**files, ".gitattributes": ATTRIBUTES, "run it.sh": "true\n"},
        run=[COMMITS],
    )
    assert found.rewards == ONE, found.evidence
    assert "seen.log" not in found.evidence["patch"]


async def test_tracked_files_that_git_ignores_are_part_of_the_change(graded):
    """A repaired file that the task's own ignore patterns name, and one that the agent's do; deleting one
    is a change too.
    """
    ignored = {
        **FILES,
        ".gitignore": "*.log\narea.py\nlogo.txt\n",
        "kept.log": "kept",
        "odd*[a]\\\n -n.log": "odd",
    }
    found = await graded(
        task_of(base_files=ignored), {"shapes/area.py": FIXED, "new.log": "x"}, run=["rm logo.txt"]
    )
    assert found.rewards == ONE, found.evidence
    assert "new.log" not in found.evidence["patch"]
    assert "kept.log" not in found.evidence["patch"]
    assert "odd" not in found.evidence["patch"]
    assert "deleted file" in found.evidence["patch"]
    ignores = {"shapes/area.py": FIXED, ".gitignore": "tests/\n*.py\n", "logo.py": "new"}
    found = await graded(task_of(), ignores, run=["git config core.excludesFile /workspace/.gitignore"])
    assert found.rewards == ONE, found.evidence
    assert "deleted file" not in found.evidence["patch"]
    assert "logo.py" not in found.evidence["patch"]


async def test_what_became_of_the_places_of_tracked_files_is_told(graded):
    """Ignored tracked files whose folder is a link, a file, or a repository, and which are folders."""
    base = {
        **FILES,
        ".gitignore": "*.log\n",
        "a/x.log": "1",
        "b/x.log": "2",
        "c/x.log": "3",
        "d.log": "4",
        "e.log": "",
    }
    run = [
        "rm -r a b d.log",
        "mv c a; ln -s a c; touch b; mkdir d.log; echo x >d.log/x; chmod +x e.log; git init -q shapes",
    ]
    looks = "import os\nassert os.readlink('c') == 'a' and open('c/x.log').read() == '3'\n"
    looks += "assert os.path.isfile('b') and os.access('e.log', os.X_OK) and os.path.isdir('shapes')\n"
    look = script(f'python3 -c "{looks}"; python3 -m pytest -rA -p no:cacheprovider tests')
    found = await graded(task_of(base_files=base, eval_script=look), {"shapes/area.py": FIXED}, run=run)
    assert found.rewards == ONE, found.evidence
    assert "Error" not in found.evidence["log"]


async def test_a_patch_of_somebody_elses_is_graded(bubblewrap):
    task = replace(task_of(), limits=LIMITS)

    async def grade(patch):
        return await grade_prediction(
            task, Prediction("acme__shapes-5", patch), lambda: bubblewrap.open(LIMITS, equipment_of(task))
        )

    assert (await grade(GOLD.rstrip("\n"))).rewards == ONE
    fuzzy = GOLD.replace(" def rectangle(width, height):\n", " def rectangle(width, depth):\n")
    found = await grade(fuzzy)
    assert (found.rewards, found.evidence["applied"]) == (ONE, "patch --batch --forward --fuzz=5 -p1 -i")
    found = await grade("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    assert (found.rewards, found.evidence["problem"]) == (ZERO, "the patch does not apply")
    for nothing in (None, "", " \n"):
        assert (await grade(nothing)).evidence["problem"] == "the prediction has no patch"


async def test_a_prediction_that_is_there_already_is_applied(bubblewrap):
    task = task_of(base_files={**task_of().files, "shapes/area.py": FIXED})
    task = replace(task, limits=LIMITS)
    prediction = Prediction("acme__shapes-5", GOLD)
    found = await grade_prediction(task, prediction, lambda: bubblewrap.open(LIMITS, equipment_of(task)))
    assert (found.rewards, found.evidence["applied"]) == (ONE, "already applied")


def script(command):
    return SCRIPT.replace("python3 -m pytest -rA -p no:cacheprovider tests", command)


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        ("cat: x: No space left on device", SandboxError, "the disk is full"),
        ("Failed to launch the browser", SandboxError, "a browser did not start"),
    ],
)
async def test_what_no_patch_breaks_is_no_reward(graded, command, error, said):
    broken = script("false").replace(": '>>>>> Start", f"echo '{command}'\n: '>>>>> Start")
    with pytest.raises(error, match=said):
        await graded(task_of(eval_script=broken), gold=True)


async def test_tests_that_use_up_memory_or_disk_have_failed(graded):
    for said in ("Killed", "cat: x: No space left on device"):
        found = await graded(task_of(eval_script=script(f"(echo '{said}'; exit 137)")), gold=True)
        assert (found.rewards, found.tampered) == (ZERO, None)
        assert "no test reported anything" in found.evidence["problem"]


async def test_tests_that_gave_no_result_score_nothing(graded):
    found = await graded(task_of(eval_script=script("echo 'collected 0 items'")), gold=True)
    assert (found.rewards, found.evidence["problem"]) == (
        ZERO,
        "no test reported anything (no test was collected)",
    )
    found = await graded(task_of(eval_script=script("kill -9 $$")), gold=True)
    assert found.rewards == ZERO


async def test_where_failures_alone_are_named_a_run_that_broke_off_resolves_nothing(graded):
    karma = {"eval_type": "fail_only", "log_parser": "parse_log_chart_js"}
    breaks = "(echo 'Executed 3 of 12'; exit 1)"
    found = await graded(task_of(**karma, eval_script=script(breaks)), gold=True)
    assert found.rewards == ZERO
    assert "exit code 1" in found.evidence["problem"]
    found = await graded(task_of(**karma, eval_script=script("echo 'Executed 12 of 12 SUCCESS'")), gold=True)
    assert found.rewards == ONE


async def test_a_task_that_cannot_work_is_its_own_fault(graded):
    with pytest.raises(TaskError, match="does not mark its tests' output"):
        await graded(task_of(eval_script="true\n"), gold=True)


async def test_scripts_that_lay_the_tests_themselves_are_left_to_it(graded):
    lays = f"git apply -v - <<'EOF'\n{task_of().metadata['swe_bench']['test_patch']}\nEOF\n: '>>>>> Start"
    found = await graded(
        task_of(eval_script=SCRIPT.replace(": '>>>>> Start", lays)),
        {"tests/test_area.py": "broken("},
        gold=True,
    )
    assert found.rewards == ONE, found.evidence


async def test_binary_files_of_the_tests_are_laid_and_those_of_the_solution_are_not(graded, tmp_path):
    for name in ("of_tests.bin", "of_gold.bin"):
        (tmp_path / name).write_bytes(b"\xff")
    assets = {"test_patch": [{"path": "of_tests.bin"}], "patch": [{"path": "of_gold.bin"}]}
    there = script("[ -f of_tests.bin ] && [ ! -f of_gold.bin ] && " + PIPED)
    task = task_of(image_assets=assets, eval_script=there)
    spec = {**task.metadata["swe_bench"], "assets": str(tmp_path)}
    found = await graded(replace(task, metadata={**task.metadata, "swe_bench": spec}), gold=True)
    assert found.rewards == ONE, found.evidence


def test_predictions_are_read_from_lines_lists_and_objects(tmp_path):
    lines = '{"instance_id": "a", "model_name_or_path": "m", "model_patch": "x"}\n\n{"instance_id": "b", "model_patch": null}\n'
    expected = {"a": Prediction("a", "x", "m"), "b": Prediction("b", None)}
    (tmp_path / "p.jsonl").write_text(lines)
    assert read_predictions(tmp_path / "p.jsonl") == expected
    (tmp_path / "l.json").write_text("[" + ",".join(lines.split("\n\n")) + "]")
    assert read_predictions(tmp_path / "l.json") == expected
    (tmp_path / "o.json").write_text(
        '{"a": {"model_patch": "x", "model_name_or_path": "m"}, "b": {"model_patch": null}}'
    )
    assert read_predictions(tmp_path / "o.json") == expected


def test_signs_that_end_a_line_elsewhere_end_no_prediction(tmp_path):
    patch = "+a\u2028b\x85c\x0c\n"
    line, other = (json.dumps({"instance_id": id_, "model_patch": patch}, ensure_ascii=False) for id_ in "ab")
    (tmp_path / "p.jsonl").write_text(f"{line}\r\n{other}\n", encoding="utf-8")
    assert [each.model_patch for each in read_predictions(tmp_path / "p.jsonl").values()] == [patch, patch]


@pytest.mark.parametrize(
    "text",
    [
        '[{"instance_id": "a"}]',
        '[{"model_patch": "x"}]',
        "[3]",
        "3",
        '{"a": 3}',
        "x",
        '[{"instance_id": "a", "model_patch": 3}]',
    ],
)
def test_what_is_no_prediction_is_named(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(TaskError, match=r"p\.json"):
        read_predictions(tmp_path / "p.json")


@pytest.mark.parametrize("name", ["swe_bench", "swe_rebench", "r2e"])
def test_every_verifier_is_one(name):
    assert isinstance(load("grader", f"harnessgym.grading.verifiers.{name}:verifier"), Verifier)


UNCHECKED = """\
import importlib.util, pathlib
from importlib._bootstrap_external import _code_to_hash_pyc
target = pathlib.Path(importlib.util.cache_from_source("shapes/area.py"))
target.parent.mkdir(exist_ok=True)
code = compile({text!r}, "shapes/area.py", "exec")
target.write_bytes(_code_to_hash_pyc(code, bytes(8), checked=False))
"""


async def test_a_repair_in_a_compiled_file_is_none(graded, bubblewrap):
    """Whether the agent leaves it, where git would take it, or a predicted patch adds it."""
    write = f"rm .gitignore; python3 -c {shlex.quote(UNCHECKED.format(text=FIXED))}; echo >note.txt"
    found = await graded(task_of(), run=[write])
    assert found.rewards == {"reward": 0.0, "f2p": 0.0, "p2p": 1.0}, found.evidence
    task = replace(task_of(), limits=LIMITS)
    async with bubblewrap.open(LIMITS, equipment_of(task)) as sandbox:
        await furnish(task, sandbox)
        commands = (
            f"git init -q . && git add -A && {write} && git add -A && git diff --cached --binary -- shapes"
        )
        made = await sandbox.exec(["sh", "-c", commands])
    assert b"GIT binary patch" in made.stdout, made
    prediction = Prediction(task.metadata["swe_bench"]["instance_id"], made.stdout.decode())
    found = await grade_prediction(
        task, prediction, lambda: bubblewrap.open(LIMITS, equipment_of(task, grades=True))
    )
    assert found.rewards == {"reward": 0.0, "f2p": 0.0, "p2p": 1.0}, found.evidence


async def test_an_environment_that_a_failing_patch_feigns_is_no_error(graded):
    """Else a policy could have its failures dropped."""
    text = "import os\nprint('Failed to launch', flush=True)\nprint('\\nKilled', flush=True)\nos._exit(1)\n"
    found = await graded(task_of(), {"conftest.py": text})
    assert found.rewards == ZERO
