"""Migrations build exactly what `tables` declares, and nothing opens a database of another revision."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

import harnessgym.store
from harnessgym.errors import SchemaError, StoreError
from harnessgym.store import TraceStore
from harnessgym.store.schema import HEAD, head_revision, revision_of
from harnessgym.store.tables import metadata


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "made" / "traces.db"


def set_revision(path: Path, revision: str) -> None:
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    raw.close()


def test_migrations_build_what_is_declared(path):
    with TraceStore.create(f"sqlite:///{path}") as store:
        options = {"compare_type": True, "compare_server_default": True}
        assert store.read(lambda conn: compare_metadata(MigrationContext.configure(conn, opts=options), metadata)) == []
        assert store.read(revision_of) == HEAD


def describe(path: Path) -> dict[str, object]:
    """Columns, references and indexes by table, as SQLite has them."""
    raw = sqlite3.connect(path)
    tables = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    indexes = raw.execute("SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    found: dict[str, object] = {"indexes": sorted((table, name, " ".join(sql.split())) for table, name, sql in indexes)}
    for table in sorted(set(tables) - {"alembic_version"}):
        references = sorted(row[2:] for row in raw.execute(f"PRAGMA foreign_key_list({table})"))
        unique = sorted(
            tuple(column[2] for column in raw.execute(f"PRAGMA index_info({row[1]})"))
            for row in raw.execute(f"PRAGMA index_list({table})")
            if row[2]
        )
        found[table] = raw.execute(f"PRAGMA table_info({table})").fetchall(), references, unique
    raw.close()
    return found


def test_columns_references_and_indexes_are_those_declared(path):
    TraceStore.create(f"sqlite:///{path}").close()
    engine = create_engine(f"sqlite:///{path.parent / 'declared.db'}")
    metadata.create_all(engine)
    engine.dispose()
    assert describe(path) == describe(path.parent / "declared.db")


def test_head_is_alembics_head():
    config = Config()
    config.set_main_option("script_location", str(Path(harnessgym.store.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD == head_revision()


def test_create_again_keeps_the_data(path):
    with TraceStore.create(f"sqlite:///{path}") as store:
        store.write(lambda conn: conn.exec_driver_sql("INSERT INTO leases VALUES ('a', 'h', 0)"))
    with TraceStore.create(f"sqlite:///{path}") as store:
        assert store.read(lambda conn: conn.exec_driver_sql("SELECT resource FROM leases").scalar()) == "a"


@pytest.mark.parametrize("revision", ["0000", "9999"])
def test_open_refuses_another_revision_with_the_command_to_run(path, revision):
    TraceStore.create(f"sqlite:///{path}").close()
    set_revision(path, revision)
    with pytest.raises(SchemaError, match=rf"revision {revision}.*harnessgym store migrate sqlite:///"):
        TraceStore.open(f"sqlite:///{path}")


def test_open_refuses_a_database_that_was_never_migrated(path):
    path.parent.mkdir()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("CREATE TABLE other (x)")
    raw.close()
    with pytest.raises(SchemaError, match="revision None"):
        TraceStore.open(f"sqlite:///{path}")


def test_open_makes_no_database(path):
    with pytest.raises(StoreError, match="harnessgym store migrate"):
        TraceStore.open(f"sqlite:///{path}")
    assert not path.exists()


def test_create_refuses_what_a_later_release_migrated(path):
    TraceStore.create(f"sqlite:///{path}").close()
    set_revision(path, "9999")
    with pytest.raises(SchemaError, match=r"9999.*Upgrade HarnessGym"):
        TraceStore.create(f"sqlite:///{path}")


def test_a_migration_that_fails_leaves_nothing(path):
    """`segments` is in the way: the tables before it must not stay."""
    path.parent.mkdir()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("CREATE TABLE segments (x)")
    with pytest.raises(StoreError, match="segments already exists"):
        TraceStore.create(f"sqlite:///{path}")
    assert raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("segments",)]
    raw.close()


def test_foreign_keys_hold_after_a_migration(path):
    with (
        TraceStore.create(f"sqlite:///{path}") as store,
        pytest.raises(StoreError, match="FOREIGN KEY"),
    ):
        store.write(lambda conn: conn.exec_driver_sql("INSERT INTO policies VALUES ('p', 'nothing', 'n', 0)"))


CREATOR = """
import sys
from harnessgym.store import TraceStore
sys.stdin.readline()
TraceStore.create(sys.argv[1]).close()
"""


def test_processes_that_create_at_once_make_one_database(path):
    command = [sys.executable, "-c", CREATOR, f"sqlite:///{path}"]
    racing = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in racing:
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=120)[1] for process in racing]
    assert [process.returncode for process in racing] == [0] * 4, errors
    TraceStore.open(f"sqlite:///{path}").close()
