"""The doctor: says of everything whether it is there, what to do if not, and fails for what the default
line needs.
"""

import json
import os
import subprocess
import sys

import pytest


def doctor(*arguments, **env):
    command = [sys.executable, "-m", "harnessgym", "doctor", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200", **env}, check=False
    )


def findings(**env):
    return {(found["topic"], found["name"]): found for found in json.loads(doctor("--json", **env).stdout)}


def test_every_line_says_what_it_found_and_what_to_do():
    found = findings()
    topics = {topic for topic, _ in found}
    assert topics >= {"python", "sandboxes", "images", "store", "docker", "agents", "machine"}
    for line in found.values():
        assert line["state"] in ("ok", "warn", "missing")
        assert line["detail"]
        assert line["state"] == "ok" or line["remedy"], line
    assert found["python", "torch"]["state"] == "ok"
    assert found["machine", "memory"]["detail"].endswith("GiB available")


def test_what_the_default_line_needs_fails_it(tmp_path):
    done = doctor("--json", PATH=str(tmp_path))
    assert done.returncode == 1
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    assert lines["bubblewrap"]["state"] == "missing"
    assert lines["bubblewrap"]["remedy"] == "apt-get install bubblewrap"
    assert lines["C compiler"]["state"] == "warn"
    assert "Missing: bubblewrap." in doctor(PATH=str(tmp_path)).stdout


@pytest.mark.bubblewrap
def test_what_only_other_lines_need_is_a_warning():
    done = doctor(DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 0
    assert "No Docker engine answers at unix:///nowhere/docker.sock" in done.stdout
    assert "The default line can run here." in done.stdout


@pytest.mark.docker
def test_the_engine_is_looked_through():
    found = findings()
    assert found["docker", "engine"]["state"] == "ok"
    for name in (
        "storage driver",
        "cgroups",
        "limit of memory",
        "limit of processes",
        "limit of processors",
        "networks",
    ):
        assert ("docker", name) in found
    assert ("images", "harnessgym/python") in found
