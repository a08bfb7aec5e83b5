import os
import shutil
import signal
import subprocess
import sys

import pytest

from harnessgym.store import TraceStore, runs
from tests.support.stored_rollouts import filled


@pytest.fixture
def folder(tmp_path):
    return filled(tmp_path / "run", 40)


def watched(*arguments, **options):
    command = [sys.executable, "-m", "harnessgym", "watch", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment, **options
    )


def set_status(folder, status):
    with TraceStore.open(folder.store_url()) as store:
        store.write(lambda conn: runs.set_status(conn, store.read(runs.only).id, status))


def test_one_look_shows_the_whole_panel_and_changes_nothing(folder):
    before = (folder.root / "traces.db").read_bytes()
    done = watched(folder.root, "--once")
    assert done.returncode == 0, done.stderr
    for part in (
        "HarnessGym look: training (no node of it takes rollouts)",
        "engine-0",
        "reconstruct",
        "16 running",
    ):
        assert part in done.stdout
    assert (folder.root / "traces.db").read_bytes() == before


def test_of_a_run_that_has_ended_it_says_how_and_returns(folder):
    set_status(folder, "done")
    done = watched(folder.root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done: 0/24 steps")


def test_it_follows_a_run_until_that_ends(folder):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "harnessgym", "watch", str(folder.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline().startswith("training: 0/24 steps")
        set_status(folder, "done")
        assert process.stdout.readline().startswith("done")
        assert process.wait(60) == 0


def test_interrupted_it_leaves_without_a_word(folder):
    command = [sys.executable, "-m", "harnessgym", "watch", str(folder.root)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_what_is_no_run_is_refused(tmp_path, folder):
    missing = watched(tmp_path / "nothing")
    assert missing.returncode == 2
    assert "is no run folder" in missing.stderr
    shutil.copy(folder.config_path, tmp_path / "config.json")
    unborn = watched(tmp_path)
    assert unborn.returncode == 2
    assert "traces.db" in unborn.stderr
