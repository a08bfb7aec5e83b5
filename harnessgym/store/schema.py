"""Which schema revision a database has, and how it is brought to this code's."""

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
HEAD = "0011"
"""Newest revision in `migrations/versions`; a test compares it with Alembic's own answer, which is slow to
import."""
WRITING: Final = {"harnessgym_write": True}
"""Execution options of a connection whose transactions take the write lock when they begin, not at their
first write."""


@cache
def head_revision() -> str:
    """The revision this code needs."""
    return HEAD


def revision_of(conn: Connection) -> str | None:
    """The revision a database has; None if it has never been migrated."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(conn: Connection, alone: Alone, revision: str = "head") -> None:
    """Migrate to a revision, data kept, in one transaction: a crash leaves the old schema, a second process
    waits its turn.

    A database without a schema gets that of `tables` at once, which is what the migrations build; a named
    revision is always reached by migrations. `alone` is that of the connection's backend. Nothing may use the
    database meanwhile. Raises `SchemaError` if a later release migrated it.
    """
    found = revision_of(conn)
    conn.rollback()
    if revision == "head" and (found == HEAD or (found is None and _built(conn, alone))):
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaError(
            f"The trace database has schema revision {found}, which this code does not know. Upgrade "
            "HarnessGym."
        )
    with alone(conn):
        config.attributes["connection"] = conn
        views.drop(conn)
        command.upgrade(config, revision)
        if revision in ("head", HEAD):
            views.create(conn)
        conn.commit()


def _built(conn: Connection, alone: Alone) -> bool:
    """Give an empty database this code's schema, without Alembic, which takes ten times as long.

    False if others gave it an older one meanwhile.
    """
    with alone(conn):
        found = revision_of(conn)
        if found is not None:
            return found == HEAD
        metadata.create_all(conn, checkfirst=False)
        conn.exec_driver_sql(_VERSION_TABLE)
        conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
        views.create(conn)
        conn.commit()
    return True


_VERSION_TABLE = """CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)"""
"""As Alembic makes it."""
