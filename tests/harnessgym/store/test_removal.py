"""Removal of rollouts: what is counted, what goes, what the checks of foreign keys are afterwards, and which texts
are unused.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, select, text

from harnessgym.store import bodies, removal, tables
from harnessgym.store.bodies import split_body, text_hash
from harnessgym.store.connections import connected
from harnessgym.store.owned_rows import in_portions
from harnessgym.store.removal import Removed
from tests.harnessgym.store.recorded_runs import SYSTEM, add_rollouts, begin_run, count, rows_of_everything

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
OF_ROLLOUTS = ("calls", "segments", "sessions", "bodies", "rewards")


@pytest.fixture(params=["sqlite"])
def kind(request):
    """The kind of database, unless a test asks for both."""
    return request.param


@pytest.fixture
def recording(store):
    return begin_run(store)


removals = st.builds(
    Removed,
    st.dictionaries(st.sampled_from(OF_ROLLOUTS), st.integers(1, 50)).map(Counter),
    st.integers(0, 10_000),
)


@given(removals, removals)
@settings(max_examples=30)
def test_two_removals_add_up_table_by_table(first, second):
    both = first + second
    assert both.bytes == first.bytes + second.bytes
    assert both.rows.keys() == first.rows.keys() | second.rows.keys()
    assert all(both.rows[name] == first.rows[name] + second.rows[name] for name in both.rows)


def lengths(store, table, *columns):
    rows = store.read(lambda conn: conn.execute(select(*(table.c[name] for name in columns))).all())
    return sum(len(value) for row in rows for value in row if value is not None)


def test_the_bytes_are_those_of_tokens_logprobs_and_short_bodies(store, recording):
    _, ids, _ = add_rollouts(recording)
    measured = store.read(lambda conn: removal.measure(conn, removal.TABLES, ids))
    tokens = lengths(store, tables.segments, "ids", "logprobs")
    bodies = lengths(store, tables.bodies, "remainder")
    assert measured.bytes == tokens + bodies > 0
    of_segments = store.read(lambda conn: removal.measure(conn, [tables.segments], ids))
    assert of_segments == Removed(Counter(segments=count(store, tables.segments)), tokens)


def test_tables_without_rows_are_not_counted(store, recording):
    _, ids = recording.group(2)
    measured = store.read(lambda conn: removal.measure(conn, removal.TABLES, ids))
    assert measured == Removed(Counter(rollouts=2), 0)


def test_unknown_rollouts_have_nothing_to_remove(store, recording):
    add_rollouts(recording)
    before = rows_of_everything(store)
    for work in (removal.remove, removal.remove_bodies):
        assert store.write(lambda conn, work=work: work(conn, ["nowhere"])) == Removed()
    assert rows_of_everything(store) == before


def test_a_group_stays_until_its_last_rollout_goes(store, recording):
    group_id, (first, second), _ = add_rollouts(recording)
    other, _, _ = add_rollouts(recording)
    removed = store.write(lambda conn: removal.remove(conn, [first]))
    assert removed.rows["rollouts"] == 1
    assert "groups" not in removed.rows
    assert set(rows_of_everything(store)["groups"]) == {group_id, other}
    removed = store.write(lambda conn: removal.remove(conn, [second]))
    assert (removed.rows["rollouts"], removed.rows["groups"]) == (1, 1)
    assert set(rows_of_everything(store)["groups"]) == {other}


def test_rows_of_other_rollouts_stay_as_they_are(store, recording):
    _, (first, second), _ = add_rollouts(recording)
    before = rows_of_everything(store)
    removed = store.write(lambda conn: removal.remove(conn, [first]))
    after = rows_of_everything(store)
    for name in OF_ROLLOUTS:
        assert removed.rows[name] == len(before[name]) - len(after[name]) == len(after[name]) > 0
        assert after[name].items() <= before[name].items()
    assert list(after["rollouts"]) == [second]
    assert after["messages"] == before["messages"]


def test_bodies_go_and_tokens_stay(store, recording):
    _, ids, _ = add_rollouts(recording)
    before = rows_of_everything(store)
    removed = store.write(lambda conn: removal.remove_bodies(conn, ids[:1]))
    after = rows_of_everything(store)
    assert removed.rows == {"bodies": 2}
    assert len(after["bodies"]) == len(before["bodies"]) - 2
    assert {name: rows for name, rows in after.items() if name != "bodies"} == {
        name: rows for name, rows in before.items() if name != "bodies"
    }


def test_a_table_is_emptied_before_those_that_its_rows_refer_to():
    names = [table.name for table in removal.TABLES]
    for place, table in enumerate(removal.TABLES):
        referred = {key.column.table.name for key in table.foreign_keys} - {table.name}
        assert not referred & set(names[:place])
    assert names[-1] == "rollouts"


def test_every_unserved_column_refers_to_removable_rows_and_has_no_index():
    names = [str(column) for column in removal.unserved()]
    assert names == sorted(names)
    assert "calls.parent_call_id" in names
    assert "exclusions.call_id" not in names, "it is the first column of a unique constraint"
    assert "rollouts.run_id" not in names, "runs are never removed"
    assert not any(column.index for column in removal.unserved())


def foreign_keys(conn):
    return conn.connection.driver_connection.execute("PRAGMA foreign_keys").fetchone()[0]


def test_sqlite_does_not_check_foreign_keys_meanwhile(url):
    with connected(url) as database:
        conn = database.writer
        assert foreign_keys(conn) == 1
        with removal.made_cheap(conn):
            assert foreign_keys(conn) == 0
        assert foreign_keys(conn) == 1


def test_foreign_keys_are_checked_again_after_an_error(url):
    with connected(url) as database:
        with pytest.raises(KeyboardInterrupt), removal.made_cheap(database.writer):
            raise KeyboardInterrupt
        assert foreign_keys(database.writer) == 1


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_postgresql_has_the_indexes_of_removal_only_meanwhile(store, url):
    def indexes():
        return {
            str(index["name"])
            for table in ("calls", "segments", "agents")
            for index in store.read(lambda conn, table=table: inspect(conn).get_indexes(table))
            if str(index["name"]).startswith("prune_")
        }

    meanwhile = set()

    def work(conn):
        with removal.made_cheap(conn):
            meanwhile.update(indexes())
            raise KeyboardInterrupt

    with connected(url) as database:
        database.writer.connection.driver_connection.autocommit = True
        with pytest.raises(KeyboardInterrupt):
            work(database.writer)
        database.writer.connection.driver_connection.autocommit = False
    assert "prune_calls_parent_call_id" in meanwhile
    assert indexes() == set()


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_nothing_refers_to_a_removed_rollout(store, recording):
    group_id, ids, _ = add_rollouts(recording)
    for rollout_id in ids:
        recording.session(rollout_id).seal()
    recording.train(group_id, ids, 1, 0)
    store.write(lambda conn: removal.remove(conn, ids))
    query = text("SELECT count(*) FROM v_rollout UNION ALL SELECT count(*) FROM v_turn")
    assert store.read(lambda conn: conn.execute(query).scalars().all()) == [0, 0]
    rows = rows_of_everything(store)
    assert {name for name in rows if rows[name]} == {
        "messages", "policies", "policy_versions", "runs", "tasks",
    }  # fmt: skip


HELLO, BYE = '{"role": "user", "content": "Grüße"}', '{"role": "user", "content": "Bye"}'


def add_body(recording, *messages, options=""):
    """Store a rollout with one call and its request. Returns the rollout's id."""
    _, (rollout_id,) = recording.group(1, "wrap")
    call_id = recording.session(rollout_id).call()
    body = f'{{"messages": [{", ".join(messages)}], "options": "{options}"}}'.encode()
    recording.store.write(lambda conn: bodies.add(conn, call_id, "request", split_body(body)))
    return rollout_id


def unused(store, but_for=None):
    return set(store.read(lambda conn: removal.unused_texts(conn, but_for=but_for)))


def stored(store):
    return set(store.read(lambda conn: conn.execute(select(tables.messages.c.hash)).scalars()))


def take_mark(store):
    return store.read(removal.mark_bodies)


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
    measured = store.read(lambda conn: removal.measure_texts(conn, [text_hash(HELLO), text_hash(BYE), "no"]))
    assert measured.rows == {"messages": 2}
    assert measured.bytes == len(HELLO.encode()) + len(BYE.encode()) == len(HELLO) + 2 + len(BYE)


def test_nothing_weighs_nothing(store, recording):
    add_body(recording, HELLO)
    for hashes in ([], ["unknown"]):
        assert (
            store.read(lambda conn, hashes=hashes: removal.measure_texts(conn, hashes)) == removal.Removed()
        )


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_a_body_that_is_newer_than_the_mark_keeps_its_texts(store, recording):
    old = add_body(recording, HELLO, BYE)
    store.write(lambda conn: removal.remove_bodies(conn, [old]))
    mark = take_mark(store)
    hashes = sorted(unused(store))
    add_body(recording, BYE)
    removed = store.write(lambda conn: removal.remove_texts(conn, hashes, mark))
    assert (removed.rows, removed.bytes) == ({"messages": 1}, len(HELLO.encode()))
    assert stored(store) == {text_hash(BYE)}


def test_a_newer_remainder_keeps_its_text_too(store, recording):
    old = add_body(recording, options="x" * 300)
    store.write(lambda conn: removal.remove_bodies(conn, [old]))
    mark = take_mark(store)
    hashes = sorted(unused(store))
    add_body(recording, options="x" * 300)
    removed = store.write(lambda conn: removal.remove_texts(conn, hashes, mark))
    assert removed == removal.Removed()
    assert stored(store) == set(hashes)


def test_a_mark_of_an_empty_database_sees_every_body_as_newer(store):
    mark = take_mark(store)
    recording = begin_run(store)
    add_body(recording, HELLO)
    removed = store.write(lambda conn: removal.remove_texts(conn, [text_hash(HELLO)], mark))
    assert removed.rows == {}
    assert stored(store) == {text_hash(HELLO)}
