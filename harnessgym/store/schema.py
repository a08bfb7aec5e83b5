"""Which schema revision a database has, and how it is brought to this code's."""

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, inspect, text

_SCRIPTS = Path(__file__).parent / "migrations"
HEAD = "0001"
"""Newest revision in `migrations/versions`; a test compares it with Alembic's own answer, which is slow to import."""


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
    """Migrate to a revision, data kept. Only one process may do this at a time, and none may write meanwhile."""
    if revision == "head" and revision_of(conn) == HEAD:
        return
    from alembic import command
    from alembic.config import Config

    conn.rollback()
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = conn
    command.upgrade(config, revision)
    conn.commit()
