"""Reading statements on a real file: what is answered, what is refused, and what the refusal says."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import StoreError
from harnessgym.store.backend import url_of_file
from harnessgym.store.plain_sql import Answered, Relation, ask, relations

NUMBERS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"


@pytest.fixture
def kind():
    """PostgreSQL's answers are tested with the command."""
    return "sqlite"


def test_columns_and_rows_are_plain_values(url):
    answer = ask(url, "SELECT 1 AS n, 'ü' AS letter, x'00ff' AS blob, NULL AS empty, 0.5 AS half", 5)
    assert answer == Answered(
        ("n", "letter", "blob", "empty", "half"), ((1, "ü", b"\x00\xff", None, 0.5),), more=False
    )


@given(rows=st.integers(1, 30), limit=st.integers(0, 35))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_no_more_rows_than_the_limit_come_and_it_is_said_whether_there_are_more(url, rows, limit):
    answer = ask(url, NUMBERS.format(rows), limit)
    assert answer.rows == tuple((number,) for number in range(1, min(rows, limit) + 1))
    assert answer.more == (rows > limit)


def test_an_endless_query_is_answered_as_far_as_it_is_wanted(url):
    assert ask(url, NUMBERS.format(10**15), 3) == Answered(("i",), ((1,), (2,), (3,)), more=True)


def test_columns_are_named_even_without_rows(url):
    assert ask(url, "SELECT id, name FROM runs", 5) == Answered(("id", "name"), (), more=False)


@pytest.mark.parametrize("query", ["", "  ", "-- nothing\n"])
def test_an_empty_statement_has_an_empty_answer(url, query):
    assert ask(url, query, 5) == Answered((), (), more=False)


def test_a_pragma_may_be_read_and_not_set(url):
    assert ask(url, "PRAGMA user_version", 5).rows == ((0,),)
    with pytest.raises(StoreError, match="Only statements that read are allowed, and nothing was changed"):
        ask(url, "PRAGMA user_version = 7", 5)
    assert ask(url, "PRAGMA user_version", 5).rows == ((0,),)


@pytest.mark.parametrize("query", ["BEGIN IMMEDIATE", "SAVEPOINT a", "DETACH main", "ANALYZE"])
def test_statements_about_transactions_and_files_are_refused(url, query):
    with pytest.raises(StoreError) as caught:
        ask(url, query, 5)
    for part in (repr(query), "EXPLAIN, SELECT, SHOW, TABLE, VALUES, WITH"):
        assert part in str(caught.value)


def test_a_refusal_shows_a_long_statement_on_one_line_and_not_in_full(url):
    query = "DELETE\n  FROM runs WHERE name IN (" + ", ".join(["'demo'"] * 50) + ")"
    with pytest.raises(StoreError) as caught:
        ask(url, query, 5)
    shown = str(caught.value).split('"')[1]
    assert shown.startswith("DELETE FROM runs WHERE name IN ('demo', 'demo'")
    assert (len(shown), shown[-1]) == (120, "…")


def test_a_wrong_statement_is_explained_with_the_databases_own_words(url):
    with pytest.raises(StoreError) as caught:
        ask(url, "SELECT colour FROM runs", 5)
    message = f"The trace database {url} cannot answer 'SELECT colour FROM runs': no such column: colour."
    assert str(caught.value).startswith(message)


def test_a_file_that_is_no_database_is_named_as_that(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("These are notes, and no database at all. " * 20)
    with pytest.raises(StoreError, match=f"{path} is damaged or not a trace database"):
        ask(f"sqlite:///{path}", "SELECT * FROM runs", 5)


@pytest.mark.parametrize("name", ["a b.db", "100%25.db", "run#7.db", "ü&x=1.db", "what?.db"])
def test_a_file_may_have_any_name(tmp_path, name):
    with closing(sqlite3.connect(tmp_path / name)) as driver:
        driver.execute("CREATE TABLE mine (n)")
        driver.execute("INSERT INTO mine VALUES (7)")
        driver.commit()
    assert ask(url_of_file(tmp_path / name), "SELECT n FROM mine", 5).rows == ((7,),)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_another_process_wrote_is_seen(url):
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as driver:
        driver.execute("INSERT INTO messages VALUES ('h', 'text')")
        driver.commit()
        assert ask(url, "SELECT body FROM messages", 5).rows == (("text",),)


def test_tables_come_before_views_each_by_name_and_without_alembics(store):
    listed = store.read(relations)
    kinds = [relation.kind for relation in listed]
    assert kinds == sorted(kinds)
    for kind in ("table", "view"):
        names = [relation.name for relation in listed if relation.kind == kind]
        assert names == sorted(names) != []
    assert "alembic_version" not in {relation.name for relation in listed}
    leases = next(relation for relation in listed if relation.name == "leases")
    columns = (("resource", "VARCHAR"), ("holder", "VARCHAR"), ("expires", "FLOAT"))
    assert leases == Relation("leases", "table", columns)
