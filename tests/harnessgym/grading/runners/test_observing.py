"""The runner that reports what tests observe, as a process of its own."""

import json
import subprocess
import sys

import pytest

from harnessgym.grading.bytecode import command, runner

ENDINGS = """
import os
import time

import pytest


@pytest.mark.parametrize("case", range(6))
def test_a(case):
    with __observing__:
        __observe__(case)
    if case == 1:
        os._exit(3)
    if case == 3:
        time.sleep(60)
    if case == 4:
        raise ValueError(case)
"""
AFTER = """
def test_b():
    with __observing__:
        __observe__("after")
"""


@pytest.fixture
def run(tmp_path):
    def run(whole_names=False, **options):
        job = {
            "nonce": "ab",
            "pycache_prefix": None,
            "encoding": runner("encoding"),
            "sources": [],
            "files": {"test_endings.py": ENDINGS, "test_after.py": AFTER},
            "tests": {"test_endings.py": None, "test_after.py": None},
            "forms": 10,
            "seed": "",
            "test_s": 3,
            "hangs": 3,
            "values": 9,
            **options,
        }
        # As in a sandbox, where python3 is the interpreter that has pytest.
        argv = [sys.executable, *command(runner("observing"))[1:]]
        sent = json.dumps(job).encode()
        done = subprocess.run(argv, input=sent, capture_output=True, cwd=tmp_path, timeout=60, check=True)
        lines = [json.loads(bytes.fromhex(line.split()[1].decode())) for line in done.stdout.splitlines()]
        assert lines[-1] == {"ended": 0}, done.stderr
        cases = {line.pop("case"): line for line in lines if "case" in line}
        return cases if whole_names else {case.partition("::")[2]: line for case, line in cases.items()}

    return run


def test_a_test_that_hangs_or_ends_its_process_takes_no_other_with_it(run):
    answers = run()
    assert set(answers) == {*(f"test_a[{case}]" for case in range(6)), "test_b"}
    assert answers["test_a[1]"] == {"crash": "exit code 3"}
    assert answers["test_a[3]"] == {"hang": 3}
    for case in (0, 2, 5):
        assert answers[f"test_a[{case}]"] == {"groups": [[case]], "raised": [], "reached": []}
    assert answers["test_a[4]"]["groups"] == [[4]]
    assert answers["test_a[4]"]["raised"][0][1][0] == "ValueError"
    assert answers["test_b"]["groups"] == [["after"]]


def test_after_the_last_hang_that_is_allowed_no_test_runs(run):
    answers = run(hangs=1)
    at = list(answers).index("test_a[3]")
    before, after = list(answers.values())[:at], list(answers.values())[at:]
    assert 0 < at < len(answers) - 1
    assert {"hang": 3} not in before
    assert after == [{"hang": 3}] * len(after)


def test_a_twin_runs_the_forms_of_its_original(run):
    text = ENDINGS.replace("range(6)", "range(40)").partition("    if case")[0]
    files = {"test_endings.py": text, "test_endings_untabled.py": text}
    common = []
    for twins in ({"test_endings_untabled.py": "test_endings.py"}, {}):
        answers = run(whole_names=True, files=files, tests=dict.fromkeys(files), forms=3, twins=twins)
        forms = [set(forms_of(answers, file)) for file in files]
        assert [len(each) for each in forms] == [3, 3]
        common.append(len(forms[0] & forms[1]))
    assert common[0] == 3 > common[1]


def forms_of(answers, file):
    return [test for each, _, test in (name.partition("::") for name in answers) if each == file]
