"""Which schema revision a database has, and how it is brought to this code's."""

from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from harnessgym.errors import SchemaError

_SCRIPTS = Path(__file__).parent / "migrations"
HEAD = "0004"
"""Newest revision in `migrations/versions`; a test compares it with Alembic's own answer, which is slow to import."""
WRITING: Final = {"harnessgym_write": True}
"""Execution options of a connection whose transactions take the write lock when they begin, not at their first write."""


@cache
def head_revision() -> str:
    """The revision this code needs."""
    return HEAD


def revision_of(conn: Connection) -> str | None:
    """The revision a database has; None if it has never been migrated."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(conn: Connection, revision: str = "head") -> None:
    """Migrate to a revision, data kept, in one transaction: a crash leaves the old schema, a second process waits its turn.

    Nothing may use the database meanwhile. Raises `SchemaError` if a later release migrated it.
    """
    found = revision_of(conn)
    conn.rollback()
    if revision == "head" and found == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaError(f"The trace database has schema revision {found}, which this code does not know. Upgrade HarnessGym.")
    conn.execution_options(**WRITING)
    _enforce_references(conn, on=False)
    try:
        config.attributes["connection"] = conn
        command.upgrade(config, revision)
        conn.commit()
    finally:
        conn.rollback()
        _enforce_references(conn, on=True)


def _enforce_references(conn: Connection, *, on: bool) -> None:
    """Switch foreign keys: rebuilding a table that others refer to needs them off. SQLite does so outside transactions only."""
    dbapi = conn.connection.cursor()
    dbapi.execute(f"PRAGMA foreign_keys={'ON' if on else 'OFF'}")
    dbapi.close()
