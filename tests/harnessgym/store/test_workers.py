"""Workers in the store: who counts as serving, and whom a supervisor may call dead."""

import time

import pytest

from harnessgym.store import TraceStore, runs, workers
from harnessgym.store.workers import WorkerRow


@pytest.fixture
def run(url):
    """A store and a run's id, with an engine of the run's own, an outside one and an outside model."""
    with TraceStore.open(url) as store:
        run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        for name, kind in (("engine-0", "embedded"), ("model", "litellm"), ("v0", "vllm")):
            row = WorkerRow(name, run_id, kind, f"http://{name}", 3, "ready")
            store.write(lambda conn, row=row: workers.upsert(conn, row))
        yield store, run_id


def states(store, question, run_id):
    return {row.id: row.state for row in store.read(lambda conn: question(conn, run_id))}


def test_a_supervisor_retires_the_engines_that_it_started_and_no_others(run):
    store, run_id = run
    store.write(lambda conn: workers.retire(conn, run_id))
    assert states(store, workers.of_run, run_id) == {"engine-0": "ended", "model": "ready", "v0": "ready"}


def test_an_engine_whose_follower_fell_silent_is_dead_until_it_is_heard_again(run):
    store, run_id = run
    assert states(store, workers.engines_of, run_id) == {"engine-0": "ready", "v0": "ready"}
    store.write(lambda conn: workers.show(conn, "v0", 60.0))
    assert states(store, workers.engines_of, run_id)["v0"] == "ready"
    store.write(lambda conn: workers.show(conn, "v0", 0.05))
    time.sleep(0.1)
    assert states(store, workers.engines_of, run_id) == {"engine-0": "ready", "v0": "dead"}
    assert states(store, workers.of_run, run_id)["v0"] == "ready"
    store.write(lambda conn: workers.show(conn, "v0", 60.0))
    assert states(store, workers.engines_of, run_id)["v0"] == "ready"


def test_an_engine_that_nobody_follows_any_more_is_what_was_said_last(run):
    store, run_id = run
    store.write(lambda conn: workers.show(conn, "v0", 0.01))
    store.write(lambda conn: workers.leave(conn, "v0"))
    time.sleep(0.05)
    assert states(store, workers.engines_of, run_id)["v0"] == "ready"


@pytest.mark.parametrize("state", ["starting", "ready", "draining", "updating", "silent", "dead", "ended"])
def test_a_drain_makes_nobody_serve_who_did_not(run, state):
    store, run_id = run
    store.write(lambda conn: workers.set_state(conn, "v0", state))
    store.write(lambda conn: workers.drain(conn, "v0"))
    assert states(store, workers.of_run, run_id)["v0"] == ("draining" if state == "ready" else state)
