"""Migrations build exactly what is declared, on both databases, and nothing opens a database of another
revision.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

import harnessgym.store
from harnessgym.errors import SchemaError, StoreError
from harnessgym.store import TraceStore, views
from harnessgym.store.backend import open_backend
from harnessgym.store.schema import HEAD, head_revision, revision_of, upgrade
from harnessgym.store.tables import metadata


@pytest.fixture
def empty(make_url):
    """A database without a schema."""
    return make_url(empty=True)


def run_sql(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(text(statement))
    engine.dispose()


def set_revision(url: str, revision: str) -> None:
    run_sql(url, f"UPDATE alembic_version SET version_num = '{revision}'")


@pytest.fixture
def migrated_step_by_step(make_url):
    """A database that has been through every migration."""
    url = make_url(empty=True)
    backend = open_backend(url)
    backend.create_location()
    engine = backend.engine()
    with engine.connect() as conn:
        upgrade(conn, backend.alone, HEAD)
    engine.dispose()
    return url


def test_migrations_build_what_is_declared(kind, migrated_step_by_step):
    with TraceStore.open(migrated_step_by_step) as store:
        options = {
            "compare_type": True,
            "compare_server_default": kind == "sqlite",
        }  # PostgreSQL compares no JSON
        assert (
            store.read(
                lambda conn: compare_metadata(MigrationContext.configure(conn, opts=options), metadata)
            )
            == []
        )
        assert store.read(revision_of) == HEAD


def describe(url: str) -> dict[str, object]:
    """Columns, references, uniqueness and indexes by table, as the database has them."""
    engine = create_engine(url)
    found, inspector = {}, inspect(engine)
    for table in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        columns = [
            (item["name"], str(item["type"]), item["nullable"], item["default"])
            for item in inspector.get_columns(table)
        ]
        references = sorted((item["name"], item["constrained_columns"], item["referred_table"], item["referred_columns"])
                            for item in inspector.get_foreign_keys(table))  # fmt: skip
        unique = sorted(
            (item["name"], item["column_names"]) for item in inspector.get_unique_constraints(table)
        )
        indexes = sorted(
            (item["name"], item["column_names"], item["unique"]) for item in inspector.get_indexes(table)
        )
        found[table] = (
            columns,
            inspector.get_pk_constraint(table)["constrained_columns"],
            references,
            unique,
            indexes,
        )
    engine.dispose()
    return found


def test_a_new_database_is_what_migrations_build(empty, migrated_step_by_step):
    """Its tables, columns, references, indexes, views, triggers and functions."""
    TraceStore.create(empty).close()
    assert describe(empty) == describe(migrated_step_by_step)
    assert "rollouts" in describe(empty)
    with TraceStore.open(empty) as new, TraceStore.open(migrated_step_by_step) as migrated:
        assert programs(new) == programs(migrated) != []
        assert new.read(revision_of) == migrated.read(revision_of) == HEAD


def programs(store: TraceStore) -> list[tuple[str, str]]:
    """Names and SQL of views, triggers and functions, as the database has them."""
    query = {
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE type IN ('view', 'trigger') ORDER BY name",
        "postgresql": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' "
        "UNION ALL SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal "
        "UNION ALL SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1, 2",
    }
    return store.read(lambda conn: [tuple(row) for row in conn.execute(text(query[conn.dialect.name]))])


def view_sql(store: TraceStore) -> dict[str, str]:
    """SQL of every view as the database has it."""
    query = {
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'view'",
        "postgresql": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    }
    return store.read(lambda conn: {row[0]: row[1] for row in conn.execute(text(query[conn.dialect.name]))})


def test_views_are_those_declared_also_where_an_older_release_left_others(empty, url):
    with TraceStore.open(url) as store:
        declared = view_sql(store)
    assert set(declared) == set(views.VIEWS)
    if url.startswith("sqlite"):
        assert declared == {
            name: f"CREATE VIEW {name} AS {views.definition(name, 'sqlite')}" for name in views.VIEWS
        }
    backend = open_backend(empty)
    engine = backend.engine()
    with engine.connect() as conn:
        upgrade(conn, backend.alone, "0004")
    engine.dispose()
    run_sql(empty, "CREATE VIEW v_turn AS SELECT id FROM calls")
    with TraceStore.create(empty) as store:
        assert view_sql(store) == declared


def test_head_is_alembics_head():
    config = Config()
    config.set_main_option("script_location", str(Path(harnessgym.store.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD == head_revision()


def test_create_again_keeps_the_data(empty):
    for _ in range(2):
        with TraceStore.create(empty) as store:
            store.write(
                lambda conn: conn.exec_driver_sql(
                    "INSERT INTO messages VALUES ('a', 'b') ON CONFLICT DO NOTHING"
                )
            )
    with TraceStore.open(empty) as store:
        assert store.read(lambda conn: conn.exec_driver_sql("SELECT body FROM messages").scalar()) == "b"


@pytest.mark.parametrize("revision", ["0000", "9999"])
def test_open_refuses_another_revision_with_the_command_to_run(url, revision):
    set_revision(url, revision)
    with pytest.raises(SchemaError, match=rf"revision {revision}.*harnessgym store migrate {url[:10]}"):
        TraceStore.open(url)


def test_open_refuses_a_database_that_was_never_migrated(empty):
    run_sql(empty, "CREATE TABLE other (x integer)")
    with pytest.raises(SchemaError, match="revision None"):
        TraceStore.open(empty)


def test_open_makes_no_file(tmp_path):
    path = tmp_path / "made" / "traces.db"
    with pytest.raises(StoreError, match="harnessgym store migrate"):
        TraceStore.open(f"sqlite:///{path}")
    assert not path.exists()
    TraceStore.create(f"sqlite:///{path}").close()
    assert path.exists()


def test_create_refuses_what_a_later_release_migrated(url):
    set_revision(url, "9999")
    with pytest.raises(SchemaError, match=r"9999.*Upgrade HarnessGym"):
        TraceStore.create(url)


def test_a_migration_that_fails_leaves_nothing(empty):
    """`segments` is in the way: the tables before it must not stay."""
    run_sql(empty, "CREATE TABLE segments (x integer)")
    with pytest.raises(StoreError, match=r"segments.* already exists"):
        TraceStore.create(empty)
    assert list(describe(empty)) == ["segments"]


def test_foreign_keys_hold_after_a_migration(empty):
    with (
        TraceStore.create(empty) as store,
        pytest.raises(StoreError, match=r"(?i)foreign key"),
    ):
        store.write(lambda conn: conn.exec_driver_sql("INSERT INTO policies VALUES ('p', 'nothing', 'n', 0)"))


CREATORS = """
import os, sys
from harnessgym.store import TraceStore
waits, go = os.pipe()
children = []
for _ in range(4):
    if (child := os.fork()) == 0:
        os.close(go)
        os.read(waits, 1)
        TraceStore.create(sys.argv[1]).close()
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
"""Four processes create a database at once. They are forked from one that has imported everything, and start
when its end of the pipe is closed."""


def test_processes_that_create_at_once_make_one_database(empty):
    racing = subprocess.run(
        [sys.executable, "-c", CREATORS, empty], capture_output=True, text=True, check=False, timeout=120
    )
    assert racing.returncode == 0, racing.stderr
    TraceStore.open(empty).close()
