"""URLs of databases: which backend they name, how they are shown, and what is refused."""

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from harnessgym.errors import StoreError
from harnessgym.store.backend import asked_patience, file_of, insert_for, open_backend, shown


@pytest.mark.parametrize("url", ["", "traces.db", "mysql://host/db", "oracle+cx://h", "sqlite"])
def test_another_database_is_refused_with_those_there_are(url):
    with pytest.raises(StoreError, match=r"give a `sqlite:///path` or `postgresql\+psycopg://host/database`"):
        open_backend(url)


def test_a_url_is_shown_without_its_password():
    assert shown("postgresql+psycopg://me:secret@host/db") == "postgresql+psycopg://me:***@host/db"
    assert shown(make_url("postgresql+psycopg://me:secret@host/db")) == "postgresql+psycopg://me:***@host/db"


@pytest.mark.parametrize("url", ["sqlite:///a b.db", "postgresql+psycopg://host/db?x=%20", "no url at all"])
def test_a_url_without_a_password_is_shown_as_written(url):
    assert shown(url) == url


def test_a_refusal_does_not_show_a_password():
    with pytest.raises(StoreError) as caught:
        open_backend("mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)


def test_the_file_of_a_database():
    assert file_of("sqlite:///runs/traces.db") == Path("runs/traces.db")
    assert file_of("sqlite:////tmp/traces.db") == Path("/tmp/traces.db")


@pytest.mark.parametrize(("query", "seconds"), [("", 30.0), ("?timeout=2", 2.0), ("?timeout=0.5", 0.5)])
def test_a_url_may_set_how_long_to_wait(query, seconds):
    assert asked_patience(make_url(f"sqlite:///t.db{query}"), "timeout", 30.0) == seconds


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_other_values_are_refused(value):
    with pytest.raises(StoreError, match="is no number of seconds: write for example timeout=30"):
        asked_patience(make_url(f"sqlite:///t.db?timeout={value}"), "timeout", 30.0)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_both_databases_can_insert_or_ignore(dialect):
    assert insert_for(dialect).__module__.startswith(f"sqlalchemy.dialects.{dialect}")
