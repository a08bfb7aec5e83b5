"""Calls of a fleet: where they run, and where they go when their worker leaves."""

import pytest

from harnessgym.simulation.clock import Clock
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.settings import EnginesSection
from harnessgym.simulation.worker import SimulatedCall


class RunningFleet:
    """A fleet on a clock, with the times at which its calls were answered."""

    def __init__(self, workers, **engines):
        self.clock = Clock()
        self.measures = Measures(self.clock)
        options = {"tokens_per_s": 10, "most_tokens_per_s": 1e18, "prefill_cost": 0} | engines
        self.fleet = SimulatedFleet(
            self.clock, self.measures, EnginesSection(workers=workers, **options), seed=0
        )
        self.answers = []
        self.fleet.answered = lambda call, worker: self.answers.append((self.clock.now, call, worker.number))

    def send(self, tokens, cached=None):
        call = SimulatedCall(None, tokens, 0, 0, {}, cached)
        self.fleet.send(call)
        return call

    def until(self, seconds):
        self.clock.after(seconds - self.clock.now, lambda: None)
        while self.clock.now < seconds:
            assert self.clock.step()

    @property
    def waiting(self):
        return self.measures.level("calls waiting").value

    @property
    def busy(self):
        return self.measures.level("engines").value


@pytest.fixture
def running():
    return RunningFleet


def test_a_call_is_answered_when_its_tokens_are_sampled(running):
    fleet = running(1)
    call = fleet.send(50)
    assert (fleet.busy, fleet.waiting) == (1, 0)
    fleet.until(5.5)
    assert [(when, answered) for when, answered, _ in fleet.answers] == [(pytest.approx(5.0), call)]
    assert (call.sampled, call.spans) == (50, {0: 50})
    assert fleet.busy == 0
    assert fleet.measures.counts["tokens sampled"] == 50


def test_a_call_goes_to_the_worker_that_has_its_context(running):
    fleet = running(3)
    assert {fleet.send(10, cached=(2, 0)).at.number for _ in range(3)} == {2}


def test_calls_wait_at_a_full_worker_in_their_order(running):
    fleet = running(1, max_batch=1)
    calls = [fleet.send(10), fleet.send(20), fleet.send(10)]
    assert fleet.waiting == 2
    fleet.until(4.5)
    assert [call for _, call, _ in fleet.answers] == calls
    assert [when for when, _, _ in fleet.answers] == pytest.approx([1.0, 3.0, 4.0])


def test_calls_wait_for_a_ready_worker_and_are_dispatched_to_it(running):
    fleet = running(1)
    worker = fleet.fleet.workers[0]
    fleet.fleet.set_state(worker, "updating")
    call = fleet.send(10)
    assert (call.at, fleet.waiting) == (None, 1)
    fleet.fleet.set_state(worker, "ready", 1)
    fleet.fleet.dispatch()
    assert (call.at, fleet.waiting) == (worker, 0)
    fleet.until(1.5)
    assert call.spans == {1: 10}


def test_a_suspended_worker_keeps_its_calls_for_its_next_version(running):
    fleet = running(2)
    worker = fleet.fleet.workers[1]
    first, second = fleet.send(50, cached=(1, 0)), fleet.send(50, cached=(1, 0))
    fleet.until(2.0)
    fleet.fleet.suspend(worker)
    assert (fleet.waiting, fleet.busy) == (2, 0)
    assert fleet.measures.counts["calls interrupted"] == 2
    assert list(worker.waiting) == [first, second]
    fleet.until(3.0)
    assert first.sampled == 20
    fleet.fleet.set_state(worker, "ready", 4)
    fleet.until(6.5)
    assert first.spans == {0: 20, 4: 30}
    assert [when for when, _, _ in fleet.answers] == pytest.approx([6.0, 6.0])


def test_the_calls_of_a_dead_worker_go_on_elsewhere_from_their_tokens(running):
    fleet = running(2)
    running_call = fleet.send(50, cached=(0, 0))
    fleet.until(2.0)
    fleet.fleet.kill(fleet.fleet.workers[0])
    assert running_call.at is fleet.fleet.workers[1]
    assert running_call.cached is None
    assert (running_call.sampled, fleet.measures.counts["calls moved"]) == (20, 1)
    fleet.until(5.5)
    assert [(number, when) for when, _, number in fleet.answers] == [(1, pytest.approx(5.0))]
    assert fleet.measures.counts["tokens sampled"] == 50


def test_calls_that_waited_at_a_dead_worker_move_too(running):
    fleet = running(2, max_batch=1)
    calls = [fleet.send(10, cached=(0, 0)) for _ in range(2)]
    fleet.fleet.kill(fleet.fleet.workers[0])
    assert [call.at.number for call in calls] == [1, 1]
    assert (fleet.busy, fleet.waiting) == (1, 1)


def test_the_last_dead_worker_leaves_its_calls_waiting(running):
    fleet = running(1)
    call = fleet.send(10)
    fleet.fleet.kill(fleet.fleet.workers[0])
    assert (call.at, fleet.waiting, fleet.busy) == (None, 1, 0)


def test_a_withdrawn_call_keeps_its_tokens_and_is_not_answered(running):
    fleet = running(1)
    call, other = fleet.send(50), fleet.send(30)
    fleet.until(1.0)
    fleet.fleet.withdraw(call)
    fleet.until(9.0)
    assert call.sampled == 10
    assert [answered for _, answered, _ in fleet.answers] == [other]


def test_withdrawing_the_last_call_leaves_the_worker_idle(running):
    fleet = running(1)
    fleet.fleet.withdraw(fleet.send(50))
    assert (fleet.busy, fleet.fleet.workers[0].load) == (0, 0)


def test_withdrawing_a_running_call_starts_the_next_one(running):
    fleet = running(1, max_batch=1)
    first, second = fleet.send(50), fleet.send(10)
    fleet.fleet.withdraw(first)
    assert (fleet.busy, fleet.waiting) == (1, 0)
    fleet.until(1.5)
    assert [answered for _, answered, _ in fleet.answers] == [second]


def test_a_call_that_waits_for_a_worker_can_be_withdrawn(running):
    fleet = running(1)
    fleet.fleet.set_state(fleet.fleet.workers[0], "dead")
    fleet.fleet.withdraw(fleet.send(10))
    assert fleet.waiting == 0


def test_a_draining_worker_finishes_its_calls_and_reports_it(running):
    fleet = running(2)
    drained = []
    fleet.fleet.drained = lambda worker: drained.append((fleet.clock.now, worker.number))
    fleet.send(20, cached=(0, 0))
    fleet.fleet.set_state(fleet.fleet.workers[0], "draining")
    assert fleet.send(10, cached=(0, 0)).at.number == 1
    fleet.until(2.5)
    assert drained == [(pytest.approx(2.0), 0)]


def test_a_halted_fleet_samples_nothing_until_it_resumes(running):
    fleet = running(2)
    call = fleet.send(50)
    fleet.until(1.0)
    fleet.fleet.halt()
    late = fleet.send(10)
    assert (fleet.busy, fleet.waiting) == (0, 2)
    fleet.until(11.0)
    assert (call.sampled, late.sampled, fleet.answers) == (10, 0, [])
    fleet.fleet.resume()
    assert fleet.waiting == 0
    fleet.until(15.5)
    assert [answered for _, answered, _ in fleet.answers] == [late, call]
    assert fleet.answers[1][0] == pytest.approx(15.0)


def test_the_tokens_of_running_calls_are_counted_at_the_end(running):
    fleet = running(2)
    fleet.send(50)
    fleet.until(3.0)
    assert fleet.measures.counts["tokens sampled"] == 0
    fleet.fleet.settle()
    assert fleet.measures.counts["tokens sampled"] == 30


def test_the_fleet_lists_each_pair_of_state_and_version_once(running):
    fleet = running(3).fleet
    assert fleet.serving() == [("ready", 0)]
    fleet.set_state(fleet.workers[0], "updating")
    fleet.set_state(fleet.workers[0], "ready", 1)
    assert sorted(fleet.serving()) == [("ready", 0), ("ready", 1)]
    for worker in fleet.workers[1:]:
        fleet.set_state(worker, "dead")
    assert sorted(fleet.serving()) == [("dead", 0), ("ready", 1)]


def test_workers_out_of_service_are_counted_by_state(running):
    fleet = running(2)
    fleet.fleet.set_state(fleet.fleet.workers[0], "draining")
    fleet.fleet.set_state(fleet.fleet.workers[0], "updating")
    levels = fleet.measures.levels()
    assert (levels["workers draining"].value, levels["workers updating"].value) == (0, 1)
    assert "workers ready" not in levels
