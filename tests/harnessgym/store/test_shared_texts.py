"""Texts that bodies share: which are unused, and which a newer body keeps."""

import pytest
from sqlalchemy import select

from harnessgym.store import bodies, removal, shared_texts, tables
from harnessgym.store.bodies import split_body, text_hash
from harnessgym.store.owned_rows import in_portions
from tests.harnessgym.store.recorded_runs import SYSTEM, begin_run

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
HELLO, BYE = '{"role": "user", "content": "Grüße"}', '{"role": "user", "content": "Bye"}'


@pytest.fixture(params=["sqlite"])
def kind(request):
    """The kind of database, unless a test asks for both."""
    return request.param


@pytest.fixture
def recording(store):
    return begin_run(store)


def add_body(recording, *messages, options=""):
    """Store a rollout with one call and its request. Returns the rollout's id."""
    _, (rollout_id,) = recording.group(1, "wrap")
    call_id = recording.session(rollout_id).call()
    body = f'{{"messages": [{", ".join(messages)}], "options": "{options}"}}'.encode()
    recording.store.write(lambda conn: bodies.add(conn, call_id, "request", split_body(body)))
    return rollout_id


def unused(store, but_for=None):
    return set(store.read(lambda conn: shared_texts.unused(conn, but_for=but_for)))


def stored(store):
    return set(store.read(lambda conn: conn.execute(select(tables.messages.c.hash)).scalars()))


def take_mark(store):
    return store.read(shared_texts.mark)


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_texts_without_a_body_are_unused(store, recording):
    first = add_body(recording, SYSTEM, HELLO)
    add_body(recording, SYSTEM, BYE)
    assert unused(store) == set()
    store.write(lambda conn: removal.remove_bodies(conn, [first]))
    assert unused(store) == {text_hash(HELLO)}


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_texts_may_be_asked_for_as_if_rollouts_were_gone(store, recording):
    first, second = add_body(recording, SYSTEM, HELLO), add_body(recording, SYSTEM, BYE)
    assert unused(store, [first]) == {text_hash(HELLO)}
    assert unused(store, [first, second]) == {text_hash(text) for text in (SYSTEM, HELLO, BYE)}
    assert unused(store, []) == set()
    portions = store.read(lambda conn: in_portions(conn, select(tables.rollouts.c.id)))
    assert unused(store, portions[0]) == stored(store)


def test_a_long_remainder_is_a_text_that_its_body_uses(store, recording):
    rollout_id = add_body(recording, HELLO, options="x" * 300)
    assert len(stored(store)) == 2
    assert unused(store) == set()
    assert unused(store, [rollout_id]) == stored(store)


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_bytes_are_those_of_utf8(store, recording):
    add_body(recording, HELLO, BYE)
    measured = store.read(lambda conn: shared_texts.measure(conn, [text_hash(HELLO), text_hash(BYE), "no"]))
    assert measured.rows == {"messages": 2}
    assert measured.bytes == len(HELLO.encode()) + len(BYE.encode()) == len(HELLO) + 2 + len(BYE)


def test_nothing_weighs_nothing(store, recording):
    add_body(recording, HELLO)
    for hashes in ([], ["unknown"]):
        assert store.read(lambda conn, hashes=hashes: shared_texts.measure(conn, hashes)) == removal.Removed()


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_a_body_that_is_newer_than_the_mark_keeps_its_texts(store, recording):
    old = add_body(recording, HELLO, BYE)
    store.write(lambda conn: removal.remove_bodies(conn, [old]))
    mark = take_mark(store)
    hashes = sorted(unused(store))
    add_body(recording, BYE)
    removed = store.write(lambda conn: shared_texts.remove(conn, hashes, mark))
    assert (removed.rows, removed.bytes) == ({"messages": 1}, len(HELLO.encode()))
    assert stored(store) == {text_hash(BYE)}


def test_a_newer_remainder_keeps_its_text_too(store, recording):
    old = add_body(recording, options="x" * 300)
    store.write(lambda conn: removal.remove_bodies(conn, [old]))
    mark = take_mark(store)
    hashes = sorted(unused(store))
    add_body(recording, options="x" * 300)
    removed = store.write(lambda conn: shared_texts.remove(conn, hashes, mark))
    assert removed == removal.Removed()
    assert stored(store) == set(hashes)


def test_a_mark_of_an_empty_database_sees_every_body_as_newer(store):
    mark = take_mark(store)
    recording = begin_run(store)
    add_body(recording, HELLO)
    removed = store.write(lambda conn: shared_texts.remove(conn, [text_hash(HELLO)], mark))
    assert removed.rows == {}
    assert stored(store) == {text_hash(HELLO)}
