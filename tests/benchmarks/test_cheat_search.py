"""The search for cheats goes on where it was, and prints what it found."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.cheat_search import SearchLog, is_finding, planned
from harnessgym.grading.cheats.disguise import PLAIN
from tests.harnessgym.grading.cheats.tally import tally

TALLY = "tests.harnessgym.grading.cheats.tally:TallyTasks"


def searched(out, candidates):
    words = [
        "--tasks",
        TALLY,
        "--every",
        "1",
        "--seed",
        "6",
        "--candidates",
        str(candidates),
        "--out",
        str(out),
    ]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.cheat_search", "--jobs", "1", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.bubblewrap
def test_an_interrupted_search_goes_on_and_prints_its_findings(tmp_path):
    out = tmp_path / "search.jsonl"
    first = searched(out, 2)
    assert searched(out, 2).stdout == first.stdout
    lines = out.read_text().splitlines()
    out.write_text(out.read_text() + '{"search": "cut o')
    second = searched(out, 6)
    assert "2 candidates on 1 of 1 tasks" in first.stdout, first.stderr
    assert "6 candidates on 1 of 1 tasks" in second.stdout, second.stderr
    kept = out.read_text().splitlines()
    assert kept[: len(lines)] == lines
    rows = [json.loads(line) for line in [*lines, *kept[len(lines) + 1 :]]]
    assert rows[0].items() >= {"task": "tally", "nothing": 0.0}.items()
    assert [row["number"] for row in rows[1:]] == list(range(6))
    assert second.returncode == 1
    assert any(f"candidate-6.{row['number']} on tally: reward 1.0" in second.stdout for row in rows[1:])
    assert "def " in second.stdout


def test_more_than_nothing_gets_is_a_finding():
    assert is_finding({"reward": 0.5, "loot": ""}, 0.25)
    assert is_finding({"reward": 0.0, "loot": "a secret"}, 0.0)
    assert not is_finding({"reward": 0.25, "loot": ""}, 0.25)
    assert not is_finding({"reward": None, "loot": ""}, 0.0)


def test_a_log_keeps_searches_apart(tmp_path):
    path = tmp_path / "log.jsonl"
    SearchLog(path, ["0", "a"]).add({"task": "a", "nothing": 0.0})
    SearchLog(path, ["1", "a"]).add({"number": 3, "task": "a", "reward": 1.0, "loot": ""})
    assert SearchLog(path, ["0", "a"]).nothing == {"a": 0.0}
    assert SearchLog(path, ["0", "a"]).findings == []
    assert [row["number"] for row in SearchLog(path, ["1", "a"]).findings] == [3]
    assert SearchLog(path, ["1", "b"]).rows == []


def test_disguises_of_every_class_are_planned_for_every_task():
    tasks = [replace(tally(), id=str(number)) for number in range(3)]
    candidates = list(planned(tasks, 0, 5))
    tried = {(candidate.task.id, candidate.composition.effect.attack) for candidate in candidates}
    assert tried == {(task.id, cheat.attack) for task in tasks for cheat in PLAIN}
    assert len(candidates) == 5 * len(tried)
    parts = [
        (
            each.task.id,
            each.composition.effect.name,
            each.composition.trigger,
            each.composition.hook,
            each.composition.hiding,
        )
        for each in candidates
    ]
    assert len(set(parts)) > 0.95 * len(parts)
    assert [each.composition for each in planned(tasks, 0, 5)] == [each.composition for each in candidates]
    assert all(candidate.composition.works for candidate in candidates)
