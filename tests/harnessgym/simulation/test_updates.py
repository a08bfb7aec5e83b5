"""Workers get new weights: draining, leases, deaths in between."""

import pytest

from harnessgym.simulation.clock import Clock
from harnessgym.simulation.draws import Draws
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.updates import Updates
from harnessgym.simulation.worker import SimulatedCall


@pytest.fixture
def make_updates(make_config):
    """`make_updates(mode="rolling")`: clock, fleet and updates of three workers; 2 s of transfer, 1 s of
    installation.
    """

    def make(**options):
        config = make_config(
            engines={"tokens_per_s": 10, "most_tokens_per_s": 1e9, "prefill_cost": 0},
            updates={"transfer_s": 2, "install_s": 1, "drain_s": 4, "at_once": 1, "lease_ttl_s": 10}
            | options,
        )
        clock = Clock()
        fleet = SimulatedFleet(clock, Measures(clock), config.engines, seed=0)
        return clock, fleet, Updates(clock, Draws(config), config, fleet)

    return make


def until(clock, seconds):
    clock.after(seconds - clock.now, lambda: None)
    while clock.now < seconds:
        assert clock.step()


def versions(fleet):
    return [worker.version for worker in fleet.workers]


def test_one_worker_after_another_fetches_drains_and_installs(make_updates):
    clock, fleet, updates = make_updates()
    updates.publish(1)
    until(clock, 2.5)  # the first has fetched, and is out of service
    assert [worker.state for worker in fleet.workers] == ["updating", "ready", "ready"]
    until(clock, 9.5)
    assert versions(fleet) == [1, 1, 1]
    assert not updates.busy


def test_a_global_pause_ends_for_all_at_once(make_updates):
    clock, fleet, updates = make_updates(mode="global")
    updates.publish(1)
    assert {worker.state for worker in fleet.workers} == {"updating"}
    until(clock, 3.5)
    assert versions(fleet) == [1, 1, 1]


def test_a_call_gets_its_time_and_then_goes_on_under_the_new_version(make_updates):
    clock, fleet, updates = make_updates(at_once=3)
    call = SimulatedCall(None, 100, 0, 0, {}, None)
    answered = []
    fleet.answered = lambda found, worker: answered.append((found, worker.version, clock.now))
    fleet.send(call)
    (worker,) = [each for each in fleet.workers if each.load]
    updates.publish(1)
    while clock.step():
        pass
    ((_, version, at),) = answered
    assert version == 1
    assert call.spans[0] + call.spans[1] == 100
    assert at == pytest.approx(11), "10 s of its own and 1 s of the installation, whichever worker has it"
    assert worker.version == 1


def test_a_dead_workers_lease_runs_out_and_the_next_takes_it(make_updates):
    clock, fleet, updates = make_updates()
    updates.publish(1)
    until(clock, 1.0)  # the first holds the only lease
    fleet.kill(fleet.workers[0])
    updates.died(fleet.workers[0])
    until(clock, 10.5)
    assert versions(fleet)[1:] == [0, 0], "the lease lasts 10 s from the death"
    until(clock, 20.0)
    assert versions(fleet)[1:] == [1, 1]
    updates.restarted(fleet.workers[0])
    assert versions(fleet) == [1, 1, 1]


def test_one_that_comes_back_gives_back_its_lease_at_once(make_updates):
    clock, fleet, updates = make_updates()
    updates.publish(1)
    until(clock, 1.0)
    fleet.kill(fleet.workers[0])
    updates.died(fleet.workers[0])
    until(clock, 2.0)
    updates.restarted(fleet.workers[0])
    until(clock, 8.5)
    assert versions(fleet) == [1, 1, 1]


def test_a_pause_does_not_wait_for_the_dead(make_updates):
    clock, fleet, updates = make_updates(mode="global")
    updates.publish(1)
    until(clock, 1.0)
    fleet.kill(fleet.workers[2])
    updates.died(fleet.workers[2])
    until(clock, 3.5)
    assert [worker.state for worker in fleet.workers] == ["ready", "ready", "dead"]
    assert versions(fleet)[:2] == [1, 1]


def test_a_call_that_nobody_wants_leaves_the_others_its_time(make_updates):
    """Two share a worker of 10 tokens/s in all; when one is withdrawn after 4 s, the other has 80 of 100
    tokens before it.
    """
    clock, fleet, _ = make_updates()
    for worker in fleet.workers[1:]:
        fleet.set_state(worker, "dead")
    fleet.workers[0].speeds = (0.0, 10.0, 5.0)
    calls = [SimulatedCall(None, 100, 0, 0, {}, None) for _ in range(2)]
    answered = []
    fleet.answered = lambda found, _worker: answered.append((found, clock.now))
    for call in calls:
        fleet.send(call)
    until(clock, 4.0)
    fleet.withdraw(calls[0])
    assert calls[0].spans == {0: 20}
    while clock.step():
        pass
    assert answered == [(calls[1], pytest.approx(4 + 80 / 10))]


def test_calls_that_wait_are_withdrawn_too(make_updates):
    clock, fleet, _ = make_updates()
    for worker in fleet.workers:
        fleet.set_state(worker, "updating")
    call = SimulatedCall(None, 100, 0, 0, {}, None)
    fleet.send(call)
    fleet.withdraw(call)
    for worker in fleet.workers:
        fleet.set_state(worker, "ready")
    fleet.dispatch()
    fleet.answered = lambda *_: pytest.fail("nobody wants it")
    while clock.step():
        pass
    assert call.spans == {}


def test_a_draining_worker_whose_last_call_is_withdrawn_is_drained(make_updates):
    clock, fleet, updates = make_updates(drain_s=1e6)
    call = SimulatedCall(None, 10_000, 0, 0, {}, None)
    fleet.send(call)
    updates.publish(1)
    until(clock, 20.0)
    assert not all(versions(fleet))
    fleet.withdraw(call)
    until(clock, 40.0)
    assert versions(fleet) == [1, 1, 1]


def test_calls_of_a_dead_worker_go_on_elsewhere_from_the_tokens_so_far(make_updates):
    clock, fleet, _ = make_updates()
    call = SimulatedCall(None, 100, 0, 0, {}, None)
    answered = []
    fleet.answered = lambda found, worker: answered.append((worker.number, clock.now))
    fleet.send(call)
    (worker,) = [each for each in fleet.workers if each.load]
    until(clock, 4.0)
    fleet.kill(worker)
    assert call.sampled == 40
    while clock.step():
        pass
    ((number, at),) = answered
    assert number != worker.number
    assert at == pytest.approx(10)
    assert call.spans == {0: 100}
