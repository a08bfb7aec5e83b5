"""A database of any earlier release, with data in every table, is brought to this code's schema with
nothing lost.
"""

from pathlib import Path

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    create_engine,
    insert,
    select,
    text,
)

from harnessgym.store import TraceStore, policies, runs, schema
from harnessgym.store.backend import open_backend
from harnessgym.store.schema import upgrade

REVISIONS = sorted(
    path.name[:4] for path in Path(schema.__file__).parent.glob("migrations/versions/[0-9]*.py")
)


def value_for(table, column):
    """Something a column can hold: rows of a table refer to the only row of another."""
    if column.foreign_keys:
        (key,) = column.foreign_keys
        return None if key.column.table is table else f"{key.column.table.name}-0"
    if column.primary_key or column.name == "target":
        return f"{table.name}-0"
    for kind, value in (
        (Boolean, True),
        (Integer, 3),
        (Float, 0.5),
        (JSON, [[0, 4, 7]]),
        (LargeBinary, b"\x01\x00\xff\x00"),
    ):
        if isinstance(column.type, kind):
            return value
    return f"{column.name} ü"


def fill(engine, *, frozen):
    """One row in every table. Returns them."""
    found = MetaData()
    found.reflect(engine)
    rows = {}
    with engine.begin() as conn:
        for table in found.sorted_tables:
            if table.name != "alembic_version":
                rows[table.name] = {column.name: value_for(table, column) for column in table.columns}
                if table.name == "rollouts":
                    rows[table.name]["frozen"] = frozen
                conn.execute(insert(table).values(rows[table.name]))
    return rows


def stored(engine):
    found = MetaData()
    found.reflect(engine)
    with engine.begin() as conn:
        return {
            table.name: [dict(row) for row in conn.execute(select(table)).mappings()]
            for table in found.tables.values()
        }


@pytest.mark.filterwarnings("ignore:Cannot correctly sort tables")
@pytest.mark.parametrize("revision", REVISIONS)
def test_every_release_comes_forward_with_its_data(make_url, revision):
    url = make_url(empty=True)
    backend = open_backend(url)
    engine = backend.engine()
    with engine.connect() as conn:
        upgrade(conn, backend.alone, revision)
    engine.dispose()
    engine = create_engine(url)
    before = fill(engine, frozen=revision < "0005")
    before["rollouts"]["frozen"] = False  # earlier releases froze whatever ended
    with TraceStore.create(url) as store:
        after = stored(engine)
        assert len(before) >= 19
        for table, row in before.items():
            (kept,) = after[table]
            assert {name: kept[name] for name in row} == row
        assert store.read(
            lambda conn: conn.execute(text("SELECT agent, last_version FROM v_turn")).one()
        ) == ("name ü", 7)
        run = store.write(lambda conn: runs.add(conn, "new", {}, "v", "training"))
        assert store.write(lambda conn: policies.register(conn, run, "p"))
        if url.startswith("sqlite"):
            assert store.read(lambda conn: conn.execute(text("PRAGMA foreign_key_check")).all()) == []
    engine.dispose()


def test_migrating_is_repeatable(url):
    TraceStore.create(url).close()
    with TraceStore.create(url) as store:
        assert store.read(runs.only) is None
