"""A slot follows its process by the answers of its place, whatever becomes of the questions."""

import time
from collections import deque
from concurrent.futures import Future

import pytest

from harnessgym.cluster.process_host import HostInfo, ProcessStatus
from harnessgym.cluster.process_slot import ProcessSlot
from harnessgym.heartbeat import Silence
from harnessgym.run_config.cluster import Need
from harnessgym.supervisor.processes import Restarts

HOST = HostInfo("10.0.0.7", "gpu-7", ("http://10.0.0.7:9",), "1", (), None)
QUIET = Silence()


class ScriptedPlace:
    """Answers each question with the next entry: a status, an error, or None for a question that stays open."""

    def __init__(self, *answers):
        self.answers = deque(answers)
        self.questions = []
        self.open = []

    def call(self, method, *arguments):
        self.questions.append((method, *arguments))
        future = Future()
        answer = self.answers.popleft() if self.answers else None
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        else:
            self.open.append(future)
        return future

    def kill(self):
        self.answers.clear()


def running(place, **state):
    """The slot of a process that its place started once."""
    slot = ProcessSlot("node-1", "node", Need(), Restarts(3), place, Future())
    for name, value in ({"state": "running", "about": HOST, "starts": 1, "pid": 42} | state).items():
        setattr(slot, name, value)
    return slot


def see(slot, log):
    """Take the answer to one question. The slot asks at most five times a second."""
    asked = len(slot.handle.questions)
    while len(slot.handle.questions) == asked:
        slot.see(log)
    slot.see(log)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "logs" / "node-1.log"


def status(log=b"", started=1, code=None, silence=QUIET):
    return ProcessStatus(started, code, log, silence)


def test_the_log_is_asked_for_from_where_the_last_piece_ended(log):
    place = ScriptedPlace(status(b"one\n"), status(b"two\n"), status())
    slot = running(place)
    for _ in range(3):
        see(slot, log)
    assert log.read_bytes() == b"one\ntwo\n"
    assert place.questions == [("look", 0, 0), ("look", 1, 4), ("look", 1, 8)]


def test_the_log_of_another_start_follows_the_first_and_is_counted_anew(log):
    place = ScriptedPlace(status(b"first"), status(b"next", started=2), status(started=2))
    slot = running(place)
    for _ in range(3):
        see(slot, log)
    assert log.read_bytes() == b"firstnext"
    assert place.questions[-1] == ("look", 2, 4)


def test_a_log_that_cannot_be_written_is_asked_for_again(log):
    log.parent.write_text("a file where the folder should be")
    place = ScriptedPlace(status(b"one"), status(b"one"), status())
    slot = running(place)
    see(slot, log)
    log.parent.unlink()
    see(slot, log)
    see(slot, log)
    assert place.questions == [("look", 0, 0), ("look", 0, 0), ("look", 1, 3)]
    assert log.read_bytes() == b"one"


def test_a_process_that_ended_has_its_exit_status(log):
    slot = running(ScriptedPlace(status(), status(b"bye", code=3)))
    see(slot, log)
    assert (slot.state, slot.code) == ("running", None)
    see(slot, log)
    assert (slot.state, slot.code) == ("ended", 3)


@pytest.mark.parametrize(
    ("state", "started"),
    [("running", 1), ("starting", 2), ("placed", 2)],
)
def test_the_exit_status_of_another_start_ends_nothing(log, state, started):
    slot = running(ScriptedPlace(status(code=0, started=started)), starts=2, state=state)
    see(slot, log)
    assert (slot.state, slot.code) == (state, None)


def test_silence_is_that_of_the_present_process(log):
    silent = Silence(30.0)
    slot = running(ScriptedPlace(status(silence=silent), status(silence=silent, started=1)))
    see(slot, log)
    assert slot.silence == silent
    slot.starts = 2
    see(slot, log)
    assert slot.silence == Silence()


def test_a_question_that_failed_is_asked_again_and_shows_no_life(log):
    place = ScriptedPlace(ConnectionError("gone"), status(b"back"))
    slot = running(place)
    heard = slot.heard
    see(slot, log)
    assert slot.heard == heard
    see(slot, log)
    assert slot.heard > heard
    assert place.questions == [("look", 0, 0)] * 2
    assert log.read_bytes() == b"back"


def test_a_place_was_alive_when_it_was_asked_and_not_when_its_answer_came(log):
    place = ScriptedPlace(None)
    slot = running(place)
    before = time.monotonic()
    slot.see(log)
    asked = time.monotonic()
    place.open[0].set_result(status(b"late"))
    slot.see(log)
    assert before <= slot.heard <= asked
    assert log.read_bytes() == b"late"


def test_no_second_question_is_asked_while_one_is_open(log):
    place = ScriptedPlace(None)
    slot = running(place)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        slot.see(log)
    assert place.questions == [("look", 0, 0)]


@pytest.mark.parametrize(
    ("state", "lost"),
    [("placing", False), ("placed", True), ("starting", True), ("running", True), ("ended", False)],
)
def test_a_silent_place_is_lost_if_it_has_answered_before(state, lost):
    slot = running(ScriptedPlace(), state=state, heard=time.monotonic() - 30.0)
    assert slot.lost(20.0) is lost
    assert slot.lost(60.0) is False


def test_where_a_process_is():
    slot = running(ScriptedPlace())
    assert slot.where == "pid 42 on gpu-7 (10.0.0.7)"
    assert slot.urls == ("http://10.0.0.7:9",)
    slot.pid, slot.state = 0, "starting"
    assert slot.where == "starting on gpu-7"
    slot.about = None
    assert (slot.where, slot.urls) == ("waits for a machine", ())


def test_a_slot_that_moves_begins_anew_and_keeps_its_restarts(log):
    slot = running(ScriptedPlace(status(b"before", silence=Silence(9.0))))
    slot.again.add(slot.name, log)
    see(slot, log)
    other, answer = ScriptedPlace(status(b"after")), Future()
    slot.move(other, answer)
    assert (slot.state, slot.about, slot.pid, slot.code, slot.starts) == ("placing", None, 0, None, 0)
    assert (slot.handle, slot.answer, slot.silence, slot.restarts) == (other, answer, Silence(), 1)
    see(slot, log)
    assert other.questions == [("look", 0, 0)]
    assert log.read_bytes() == b"beforeafter"
