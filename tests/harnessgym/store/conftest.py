"""A real store on each kind of database, with one rollout in it, and calls of a session."""

import shutil

import pytest

from harnessgym.store import TraceStore, calls, new_id, policies, rollouts, runs
from harnessgym.store.calls import CallIntent, Segment
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task
from harnessgym.tokens import hash_ids


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def kind(request):
    """The kind of database."""
    return request.param


@pytest.fixture(scope="session")
def migrated(postgres):
    """A database with the schema and nothing in it, to be copied."""
    url = postgres.create_database()
    TraceStore.create(url).close()
    return url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """The same, as a file."""
    path = tmp_path_factory.mktemp("migrated") / "traces.db"
    TraceStore.create(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def make_url(kind, tmp_path, request):
    """Makes databases of that kind: without a schema if `empty`."""
    made = []

    def make(*, empty=False):
        if kind == "postgresql":
            template = None if empty else request.getfixturevalue("migrated")
            made.append(request.getfixturevalue("postgres").create_database(template))
        else:
            path = tmp_path / f"traces-{len(made)}.db"
            made.append(f"sqlite:///{path}")
            if not empty:
                shutil.copy(request.getfixturevalue("migrated_file"), path)
        return made[-1]

    yield make
    if kind == "postgresql":
        for url in made:
            request.getfixturevalue("postgres").drop_database(url)


@pytest.fixture
def url(make_url):
    return make_url()


@pytest.fixture
def store(url):
    with TraceStore.open(url) as store:
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
        length, digest = len(segment.ids), hash_ids(segment.ids)
        intent = CallIntent(
            new_id(), session_id, rollout_id, ordinal, "chat", "policy", "keep", "r", "c", length, digest, segment.id, "e"
        )  # fmt: skip
        store.write(lambda conn: calls.intend(conn, intent, segment, body))
        return intent.id

    return add
