"""A real store with one rollout in it, and calls of a session."""

import pytest

from harnessgym.store import TraceStore, calls, new_id, policies, rollouts, runs
from harnessgym.store.calls import CallIntent, Segment
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path / 'traces.db'}") as store:
        yield store


@pytest.fixture
def rollout_id(store):
    def work(conn):
        run = runs.add(conn, "demo", {}, "test", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        rollouts.submit(conn, GroupSpec(run, task, policy, "train", 0, 0, {}, ("h",), "process", (0,)))
        return rollouts.claim(conn, run, "node", 60.0, 1)[0].id

    return store.write(work)


@pytest.fixture
def add_call(store, rollout_id):
    """Writes the intent of a session's call; returns its id."""

    def add(session_id, ordinal, body=None):
        segment = Segment(new_id(), session_id, "prompt", None, (1, 2))
        length, digest = calls.prompt_fingerprint(segment.ids)
        intent = CallIntent(
            new_id(), session_id, rollout_id, ordinal, "chat", "policy", "keep", "r", "c", length, digest, segment.id, "e"
        )  # fmt: skip
        store.write(lambda conn: calls.intend(conn, intent, segment, body))
        return intent.id

    return add
