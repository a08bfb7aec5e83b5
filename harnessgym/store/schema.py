"""The schema revision of a database, and its upgrade to the one that this code needs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from harnessgym.errors import SchemaError
from harnessgym.store import views
from harnessgym.store.tables import metadata

Alone = Callable[[Connection], AbstractContextManager[None]]
_SCRIPTS = Path(__file__).parent / "migrations"
HEAD = "0013"
"""Newest revision in `migrations/versions`. A constant, because Alembic is slow to import; a test compares it
with Alembic's answer."""
WRITING: Final = {"harnessgym_write": True}
"""Execution options of a connection whose transactions take the write lock when they begin, not at the first
write."""


@cache
def head_revision() -> str:
    """Return the revision that this code needs."""
    return HEAD


def revision_of(conn: Connection) -> str | None:
    """Return the revision of a database; None if it has never been migrated."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(conn: Connection, alone: Alone, revision: str = "head") -> None:
    """Migrate to a revision in one transaction, keeping all data.

    A crash leaves the old schema, and a second process waits. A database without a schema gets that of
    `tables` directly, which is what the migrations build; a named revision is always reached by migrations.
    `alone` is that of the connection's backend. Nothing else may use the database meanwhile. Raises
    `SchemaError` if a later release migrated it.
    """
    current_revision = revision_of(conn)
    conn.rollback()
    if revision == "head" and (
        current_revision == HEAD or (current_revision is None and _built(conn, alone))
    ):
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current_revision is not None and current_revision not in known:
        raise SchemaError(
            f"The trace database has schema revision {current_revision}, which this code does not know. "
            "Upgrade HarnessGym."
        )
    with alone(conn):
        config.attributes["connection"] = conn
        # Views and triggers depend on the tables and would block altering them. They are dropped before the
        # migrations and created again after the last one, in the same transaction.
        views.drop(conn)
        command.upgrade(config, revision)
        if revision in ("head", HEAD):
            views.create(conn)
        conn.commit()


def _built(conn: Connection, alone: Alone) -> bool:
    """Give an empty database this code's schema without Alembic, which takes ten times as long.

    Returns False if another process gave it an older schema meanwhile.
    """
    with alone(conn):
        # The caller looked without the lock, so look again with it.
        revision = revision_of(conn)
        if revision is not None:
            return revision == HEAD
        metadata.create_all(conn, checkfirst=False)
        conn.exec_driver_sql(_VERSION_TABLE)
        conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
        views.create(conn)
        conn.commit()
    return True


_VERSION_TABLE = """CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)"""
"""The table as Alembic creates it."""
