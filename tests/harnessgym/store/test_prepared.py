"""A prepared statement writes what SQLAlchemy would have written."""

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    insert,
    select,
    text,
    update,
)

from harnessgym.errors import StoreError
from harnessgym.store.prepared import Prepared

ROWS = Table(
    "prepared_rows", MetaData(),
    Column("id", String, primary_key=True), Column("number", BigInteger), Column("real", Float), Column("blob", LargeBinary),
    Column("json", JSON), Column("left_out", String),
)  # fmt: skip
GIVEN = {"id": "a", "number": 2**40, "real": 0.5, "blob": b"\x00\xff", "json": {"é": [1, None, "\U0001f600"]}}
INSERT = Prepared(insert(ROWS), GIVEN)
UPDATE = Prepared(
    update(ROWS)
    .where(ROWS.c.id == bindparam("key"), ROWS.c.number > 1)
    .values(json=bindparam("json"), number=7)
)


@pytest.fixture
def store(store):
    store.write(ROWS.create)
    return store


def row(store, key):
    return store.read(lambda conn: conn.execute(select(ROWS).where(ROWS.c.id == key)).mappings().one())


def test_values_are_converted_as_the_tables_say(store):
    store.write(lambda conn: INSERT.run(conn, GIVEN))
    store.write(lambda conn: conn.execute(insert(ROWS).values({**GIVEN, "id": "b"})))
    assert dict(row(store, "a")) == {**GIVEN, "left_out": None}
    raw = text("SELECT number, real, blob, CAST(json AS VARCHAR), left_out FROM prepared_rows WHERE id = :id")
    prepared, plain = (store.read(lambda conn, key=key: conn.execute(raw, {"id": key}).one()) for key in "ab")
    assert prepared == plain


def test_an_update_takes_its_own_values_and_those_it_is_given(store):
    store.write(lambda conn: INSERT.run_many(conn, [{**GIVEN, "id": key} for key in "abc"]))
    store.write(
        lambda conn: UPDATE.run_many(
            conn, [{"key": "a", "json": [1]}, {"key": "b", "json": []}, {"key": "x", "json": 0}]
        )
    )
    assert [(row(store, key)["json"], row(store, key)["number"]) for key in "abc"] == [
        ([1], 7),
        ([], 7),
        (GIVEN["json"], 2**40),
    ]
    store.write(lambda conn: UPDATE.run(conn, {"key": "c", "json": "said"}))
    assert row(store, "c")["json"] == "said"


def test_what_the_database_refuses_is_a_store_error_and_leaves_nothing(store):
    def twice(conn):
        INSERT.run(conn, GIVEN)
        INSERT.run(conn, GIVEN)

    with pytest.raises(StoreError, match=r"(?i)unique"):
        store.write(twice)
    assert store.read(lambda conn: conn.execute(select(ROWS)).all()) == []


def test_a_read_that_is_refused_is_a_store_error_too(store):
    with pytest.raises(StoreError, match=r"(?i)unique"):
        store.read(lambda conn: INSERT.run_many(conn, [GIVEN, GIVEN]))
