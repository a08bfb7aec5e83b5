import json
import time

import pytest

from harnessgym.errors import HarnessGymError
from harnessgym.process import ProcessId
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.processes import FATAL_EXIT


@pytest.fixture(params=["an interpreter each", "forks"])
def children(request, tmp_path):
    group = Children(RunFolder(tmp_path), threads=1, max_restarts=2)
    if request.param == "forks":
        group.load(["node"])
    yield group
    group.end_all()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_wrong_settings_end_a_process_for_good_with_a_clear_last_word(children, tmp_path):
    children.start(ChildSpec("node", "node", {"rnu": str(tmp_path)}))
    wait_for(children.exited)
    assert children.exited() == [("node", FATAL_EXIT)]
    assert "Did you mean 'run'?" in children.log_tail("node")


def test_restarts_are_bounded_and_the_log_is_named(children, tmp_path):
    children.start(ChildSpec("node", "node", {"rnu": str(tmp_path)}))
    for _ in range(2):
        wait_for(children.exited)
        children.restart("node")
    wait_for(children.exited)
    with pytest.raises(HarnessGymError, match=r"ended 3 times within a minute.*node\.log"):
        children.restart("node")


def test_leftovers_of_a_killed_supervisor_are_ended_and_nothing_else(children, tmp_path):
    recorded = RunFolder(tmp_path).processes_path
    children.start(ChildSpec("list", "list", {}))
    entry = json.loads(recorded.read_text())["list"]
    wait_for(children.exited)
    another = Children(RunFolder(tmp_path), threads=1, max_restarts=2)
    assert another.end_leftovers() == []
    assert not ProcessId(*entry).alive()


def test_secrets_in_settings_are_for_the_owner_alone(children, tmp_path):
    children.start(ChildSpec("node", "node", {"control_key": "secret"}))
    assert (tmp_path / "services" / "node.json").stat().st_mode & 0o077 == 0


def test_the_last_word_is_the_error_and_not_what_was_logged_before(children):
    log = children.log_path("node")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("INFO started\nINFO working\nharnessgym: It failed.\nBecause of this.\n")
    assert children.log_tail("node") == "harnessgym: It failed.\nBecause of this."
    log.write_text("x" * 9_000 + " the end")
    assert len(children.log_tail("node")) == 1_500
    assert children.log_tail("nobody") == "(it wrote nothing)"
