import json
import threading
import time

import pytest

from harnessgym.metrics.feed import SinkFeed, SinkStatus, SinkStatuses, feeding, merged, read_statuses
from harnessgym.metrics.lines import append
from harnessgym.metrics.sink import SinkPlace
from harnessgym.run_folder import RunFolder


class Kept:
    """A sink that keeps what it is given in a file, and fails when told to."""

    needs = "json"
    knows = True

    def __init__(self, place):
        self.path = place.folder / f"{type(self).__name__}.jsonl"
        self.closed = threading.Event()

    def last_step(self):
        if not self.knows:
            return None
        return (
            max((json.loads(line)["step"] for line in self.path.read_text().splitlines()), default=-1)
            if self.path.exists()
            else -1
        )

    def write(self, step, at, values):
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "at": at, "values": dict(values)}) + "\n")

    def flush(self):
        pass

    def close(self):
        self.closed.set()


class Forgetful(Kept):
    knows = False


class Broken(Kept):
    """Cannot be made at all."""

    def __init__(self, place):
        raise RuntimeError("no such server")


class Flaky(Kept):
    """Fails at step 2, once."""

    failed = False

    def write(self, step, at, values):
        if step == 2 and not type(self).failed:
            type(self).failed = True
            raise OSError("connection reset")
        super().write(step, at, values)


def metric(folder, step, **values):
    append(folder.metrics_path, {"step": step, "time": 100.0 + step} | values)


def observe(folder, step, **values):
    append(
        folder.observed_path,
        {"step": step, "time": 0.0} | {name.replace("__", "/"): v for name, v in values.items()},
    )


def fed(folder, kind, said=None):
    """Feed one sink with all there is, as at the end of a run."""
    with feeding(
        {"kept": kind}, SinkPlace(folder.root, "run", "x", "p"), (said if said is not None else []).append
    ) as feeds:
        pass
    path = folder.root / f"{kind.__name__}.jsonl"
    return feeds[0], [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_the_trainers_numbers_and_what_was_observed_become_one_entry(folder):
    metric(folder, 1, reward=0.5, note="words", version=2)
    observe(folder, 1, idle__trainer=0.3)
    _, lines = fed(folder, Kept)
    assert lines == [
        {
            "step": 1,
            "at": 101.0,
            "values": {"trainer/reward": 0.5, "trainer/version": 2.0, "idle/trainer": 0.3},
        }
    ]
    assert read_statuses(folder.sinks_path) == {"kept": SinkStatus(1, 0)}


def test_the_numbers_of_further_policies_trainers_have_their_names(folder):
    metric(folder, 1, reward=0.5)
    (folder.policies / "helper").mkdir(parents=True)
    metric(RunFolder(folder.root, "helper"), 1, reward=0.25, step_s=2.0)
    observe(folder, 1, idle__trainer=0.3)
    _, ((line),) = fed(folder, Kept)
    assert line["values"] == {
        "trainer/reward": 0.5, "trainer-helper/reward": 0.25, "trainer-helper/step_s": 2.0, "idle/trainer": 0.3
    }  # fmt: skip


def test_a_step_waits_until_it_has_been_observed_but_the_last_do_not():
    lines = [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}, {"step": 3, "reward": 0.3}]
    seen = [{"step": 2, "rate/x": 1.0}]
    assert [step for step, _, _ in merged(lines, seen, -1, final=False)] == [1, 2]
    assert [step for step, _, _ in merged(lines, seen, -1, final=True)] == [1, 2, 3]
    assert [step for step, _, _ in merged(lines, seen, 2, final=True)] == [3]


@pytest.mark.parametrize("kind", [Kept, Forgetful])
def test_a_run_that_is_taken_up_again_adds_to_it_and_repeats_nothing(folder, kind):
    for step in (1, 2):
        metric(folder, step, reward=step / 10)
    fed(folder, kind)
    metric(folder, 2, reward=0.9)  # written again around a crash
    metric(folder, 3, reward=0.3)
    _, lines = fed(folder, kind)
    assert [(line["step"], line["values"]["trainer/reward"]) for line in lines] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]


def test_a_sink_that_knows_what_it_holds_is_believed(folder):
    """Killed after it wrote, and before that was remembered; and the other way round."""
    for step in (1, 2, 3):
        metric(folder, step)
    fed(folder, Kept)
    SinkStatuses(folder.sinks_path).note("kept", SinkStatus(1, 0))
    assert [line["step"] for line in fed(folder, Kept)[1]] == [1, 2, 3]
    (folder.root / "Kept.jsonl").unlink()
    assert [line["step"] for line in fed(folder, Kept)[1]] == [1, 2, 3]


def test_a_sink_that_fails_is_said_once_counted_and_ends_nothing(folder):
    metric(folder, 1)
    said, place = [], SinkPlace(folder.root, "run", "x", "p")
    feed = SinkFeed(
        "broken", lambda: Broken(place), folder, said.append, SinkStatuses(folder.sinks_path), 0.01, 0.01
    )
    deadline = time.monotonic() + 60
    while feed.failures < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    feed.end()
    assert feed.join(60)
    assert feed.failures >= 3
    assert len(said) == 1
    assert "RuntimeError: no such server. The run goes on" in said[0]
    assert read_statuses(folder.sinks_path)["broken"] == SinkStatus(-1, feed.failures)


def test_a_sink_that_recovers_misses_nothing(folder):
    for step in (1, 2, 3):
        metric(folder, step)
        observe(folder, step)
    said, place = [], SinkPlace(folder.root, "run", "x", "p")
    feed = SinkFeed(
        "flaky", lambda: Flaky(place), folder, said.append, SinkStatuses(folder.sinks_path), 0.01, 0.01
    )
    deadline = time.monotonic() + 60
    while feed.step < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    feed.end()
    assert feed.join(60)
    assert [json.loads(line)["step"] for line in (folder.root / "Flaky.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
    ]
    assert (feed.failures, len(said)) == (1, 1)


def test_one_that_hangs_does_not_hold_up_the_others_or_the_end(folder):
    released = threading.Event()

    class Hanging(Kept):
        def __init__(self, place):
            released.wait()
            super().__init__(place)

    metric(folder, 1)
    observe(folder, 1)
    said, deadline = [], time.monotonic() + 60
    try:
        with feeding(
            {"hangs": Hanging, "works": Kept}, SinkPlace(folder.root, "run", "x", "p"), said.append, 0.5
        ) as feeds:
            while feeds[1].step < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert json.loads((folder.root / "Kept.jsonl").read_text())["step"] == 1
        assert "The metrics sink 'hangs' had not finished after 0 s and is abandoned." in said
    finally:
        released.set()


def test_what_is_written_while_the_run_goes_on_is_fed_while_it_goes_on(folder):
    place = SinkPlace(folder.root, "run", "x", "p")
    feed = SinkFeed("kept", lambda: Kept(place), folder, print, SinkStatuses(folder.sinks_path), 0.01)
    metric(folder, 1)
    observe(folder, 1)
    deadline = time.monotonic() + 60
    while read_statuses(folder.sinks_path).get("kept") != SinkStatus(1, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_statuses(folder.sinks_path)["kept"] == SinkStatus(1, 0)
    feed.end()
    assert feed.join(60)


def test_a_record_that_is_not_ours_is_as_good_as_none(folder):
    assert read_statuses(folder.sinks_path) == {}
    for text in ("", "[]", '{"x": 1}', '{"x": {"steps": 3}}', '{"x": {"st'):
        folder.sinks_path.write_text(text)
        assert read_statuses(folder.sinks_path) == {}
    assert SinkStatuses(folder.sinks_path).of("x") == SinkStatus(-1, 0)
