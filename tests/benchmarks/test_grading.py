"""The benchmark of grading measures real verdicts, counts the sandboxes' processes, and says what it ran on."""

import json
import subprocess
import sys

import pytest

from benchmarks.grading.__main__ import overall
from benchmarks.grading.costs import GradingCost, Samples, package_of, processor_seconds, sample
from harnessgym.tasks.source import all_tasks, task_set

PACKAGES = ("boltons", "cachetools", "humanize", "inflection", "itsdangerous", "parse", "semver", "sqlparse",
            "toolz", "webcolors", "xmltodict")  # fmt: skip


@pytest.mark.bubblewrap
@pytest.mark.timeout(900)
def test_a_quick_run_grades_a_task_of_two_packages_in_each_way(tmp_path):
    out = tmp_path / "grading.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.grading", "--quick", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    assert (written["quick"], written["repeats"], written["sandbox"]) == (True, 1, "bubblewrap")
    assert {"cpus", "load", "python"} <= set(written["machine"])
    rows = written["tasks"]
    assert [row["package"] for row in rows] == ["inflection", "itsdangerous"]
    for row in rows:
        assert row["faults"] == []
        assert min(row["assertions"]) > 0
        assert row["ratio"] > 1.0
        for name in ("preparation", "pytest", "by_value", "opinion", "gold", "start", "candidate"):
            assert len(row[name]["wall_s"]) == 1
        # The tests run in a sandbox, so their processor time is that of descendants.
        assert row["pytest"]["processor_s"][0] > 0.2
    assert written["ratio"] == pytest.approx(
        sum(row["by_value"]["wall_s"][0] for row in rows) / sum(row["pytest"]["wall_s"][0] for row in rows),
        abs=2e-3,
    )


def test_a_sample_has_a_task_of_each_package_and_depends_on_the_seed_alone():
    tasks = all_tasks(task_set("swe"))
    chosen = sample(tasks, 0)
    assert tuple(map(package_of, chosen)) == PACKAGES
    assert sample(tasks, 0, PACKAGES[2:4]) == chosen[2:4]
    assert [task.id for task in sample(tasks, 1)] != [task.id for task in chosen]


def test_processor_time_counts_children_that_live_and_those_that_ended():
    spin = (
        "import time, sys\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint()\n"
    )
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", spin], check=True, capture_output=True)
    ended = processor_seconds()
    assert ended - before > 0.25
    waiting = [sys.executable, "-c", f"{spin}sys.stdout.flush()\nsys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert processor_seconds() - ended > 0.25
        child.stdin.close()


def test_the_ratio_of_all_weighs_tasks_by_their_time():
    costs = [
        GradingCost("a", "p", "made", pytest=Samples([1.0, 9.0, 2.0]), by_value=Samples([4.0])),
        GradingCost("b", "p", "made", pytest=Samples([8.0]), by_value=Samples([11.0])),
    ]
    assert [cost.ratio for cost in costs] == [2.0, 11 / 8]
    assert overall(costs) == 1.5
