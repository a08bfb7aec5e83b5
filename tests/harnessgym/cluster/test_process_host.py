"""One place on this machine, with a real process in it."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from harnessgym.cluster.process_host import ProcessHost, StartRequest, release
from harnessgym.process import identify
from harnessgym.store import TraceStore, runs
from harnessgym.supervisor.processes import FATAL_EXIT
from tests.harnessgym.cluster.local_ground import QuietPlace

POLICY = Path(__file__).parents[3] / "environments/lookup/policy"
WAITING = StartRequest("waiting", {"key": "secret"})


def wait_for(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def place():
    made = QuietPlace("127.0.0.1", 0, 60.0)
    yield made
    made.end()


def test_it_tells_what_it_is_and_what_is_missing(place, tmp_path):
    about = place.about([str(tmp_path), str(tmp_path / "nothing")], "process")
    assert (about.host, about.urls, about.missing, about.lacks) == (
        "127.0.0.1",
        (),
        (str(tmp_path / "nothing"),),
        None,
    )
    assert about.release == release()


def test_settings_are_for_this_user_alone_and_a_node_gets_its_run(place):
    place.start(StartRequest("waiting", {"key": "secret"}, config={"name": "mine"}))
    files = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in place.folder.rglob("*") if path.is_file()
    }
    assert files == {"settings.json": 0o600, "config.json": 0o600, "log": 0o600}
    assert f'"run": "{place.folder / "run"}"' in (place.folder / "settings.json").read_text()


def test_the_log_is_told_piece_by_piece_and_the_status_behind_all_of_it(place):
    place.start(WAITING)
    first = wait_for(lambda: place.look(1, 0).log)
    assert first == b"up waiting\n"
    assert place.look(1, len(first)).log == b""
    (place.folder / "end").write_text("3")
    found = wait_for(lambda: (look := place.look(1, len(first))).code is not None and look)
    assert (found.code, found.log) == (3, b"harnessgym: It ended.\n")


def test_a_status_waits_for_a_long_log(place):
    place.start(WAITING)
    wait_for(lambda: place.look(1, 0).log)
    place.stop()
    with place.log.open("ab") as log:
        log.write(b"x" * (3 << 18))
    size, codes = 0, []
    while None in (codes[-1:] or [None]):
        look = place.look(1, size)
        size, codes = size + len(look.log), [*codes, look.code]
    assert codes == [None, None, None, -signal.SIGKILL]
    assert size == place.log.stat().st_size


def test_another_start_ends_the_first_and_begins_its_log_anew(place):
    first = identify(place.start(WAITING))
    wait_for(lambda: place.look(1, 0).log)
    place.start(StartRequest("again", {}))
    assert not first.alive()
    look = wait_for(lambda: (look := place.look(1, 11)).log and look)
    assert (look.started, look.code, look.log) == (2, None, b"up again\n")


def test_draining_asks_and_does_not_kill(place):
    place.drain()  # nothing runs
    place.start(WAITING)
    wait_for(lambda: place.look(1, 0).log)
    place.drain()
    assert wait_for(lambda: (look := place.look(1, 0)).code is not None and look).code == 0


def test_a_place_that_is_asked_no_more_ends_its_process():
    place = QuietPlace("127.0.0.1", 0, 4.0)
    try:
        process = identify(place.start(WAITING))
        for _ in range(20):
            assert place.look(1, 0).code is None
            time.sleep(0.1)
        wait_for(lambda: not process.alive())
        assert place.look(1, 0).code == -signal.SIGKILL
    finally:
        place.end()


def test_it_ends_with_all_it_made():
    place = QuietPlace("127.0.0.1", 1, 60.0)
    process = identify(place.start(StartRequest("waiting", {}, ("fd",), {"name": "mine"})))
    kept = place.folder / "run" / "workspaces" / "one"
    kept.mkdir(parents=True)
    (kept / "deep").mkdir(mode=0o000)
    (url,) = place.about([], None).urls
    place.end()
    assert not process.alive()
    assert not place.folder.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_the_folder_of_a_killed_place_goes_with_the_next_one():
    making = "from harnessgym.cluster.process_host import ProcessHost; print(ProcessHost('127.0.0.1', 0, 9).folder, flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", making], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(other.stdout.readline().strip())
    try:
        second = QuietPlace("127.0.0.1", 0, 60.0)
        assert folder.exists()  # it lives
    finally:
        other.kill()
        other.communicate()
    third = QuietPlace("127.0.0.1", 0, 60.0)
    assert not folder.exists()
    assert second.folder.exists()
    second.end()
    third.end()
    assert not list(Path(tempfile.gettempdir()).glob(f"harnessgym-place-{os.getpid()}-*"))


def test_a_real_proxy_answers_at_the_places_own_sockets_before_and_after_a_kill(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run = store.write(lambda conn: runs.add(conn, "x", {}, "0", "training"))
    settings = {
        "store": f"sqlite:///{tmp_path}/traces.db",
        "run_id": run,
        "policy": str(POLICY),
        "control_key": "key",
    }
    place = ProcessHost("127.0.0.1", 2, 60.0)
    try:
        harnesses, control = place.about([], None).urls
        for start in (1, 2):
            place.start(StartRequest("proxy", settings, ("fd", "control_fd")))
            asked = httpx.get(
                f"{control}/control/health", headers={"authorization": "Bearer key"}, timeout=60
            )
            assert asked.status_code == 200, place.look(start, 0)
            assert httpx.get(f"{harnesses}/v1/models", timeout=60).status_code == 401
            place.stop()
            assert wait_for(lambda: place.look(start, 0).code) == -signal.SIGKILL  # noqa: B023
        place.start(StartRequest("proxy", settings | {"polcy": "x"}, ("fd", "control_fd")))
        assert wait_for(lambda: place.look(3, 0).code) == FATAL_EXIT
        assert b"Did you mean 'policy'?" in place.look(3, 0).log
    finally:
        place.end()
