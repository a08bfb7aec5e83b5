"""URLs of databases: which backend they name, how they are shown, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from harnessgym.cli.traces.source import store_url
from harnessgym.errors import StoreError
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, runs
from harnessgym.store.backend import file_of, insert_for, open_backend, seconds_in, shown, url_of_file


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
    assert seconds_in(make_url(f"sqlite:///t.db{query}"), "timeout", 30.0) == seconds


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_other_values_are_refused(value):
    with pytest.raises(StoreError, match="is not a number of seconds: write for example timeout=30"):
        seconds_in(make_url(f"sqlite:///t.db?timeout={value}"), "timeout", 30.0)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_both_databases_can_insert_or_ignore(dialect):
    assert insert_for(dialect).__module__.startswith(f"sqlalchemy.dialects.{dialect}")


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1))
def test_the_url_of_a_file_leads_back_to_it(name):
    path = Path("/runs") / name / "traces.db"
    assert file_of(url_of_file(path)) == path


def test_an_ordinary_path_is_written_as_it_is():
    assert url_of_file(Path("/runs/a b+c#1/ü.db")) == "sqlite:////runs/a b+c#1/ü.db"
    assert url_of_file(Path("traces.db")) == "sqlite:///traces.db"


@pytest.mark.parametrize("names", [("what?a", "what?b"), ("50%25", "50%"), ("x?timeout=3", "x")])
def test_files_whose_names_mean_something_in_a_url_are_two_databases(tmp_path, names):
    for name in names:
        with TraceStore.create(url_of_file(tmp_path / name / "traces.db")) as store:
            store.write(lambda conn, name=name: runs.add(conn, name, {}, "0", "training"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        with TraceStore.open(url_of_file(tmp_path / name / "traces.db")) as store:
            assert [run.name for run in store.read(runs.all_of)] == [name]


@pytest.mark.parametrize("name", ["run?1", "100%25"])
def test_a_missing_database_is_named_by_a_url_that_leads_to_it(tmp_path, name):
    url = url_of_file(tmp_path / name)
    with pytest.raises(StoreError) as caught:
        TraceStore.open(url)
    assert str(caught.value).startswith(f"There is no trace database at {tmp_path / name}.")
    assert f"`harnessgym store migrate {url}`" in str(caught.value)


@pytest.mark.parametrize("name", ["run", "run?1", "100%25"])
def test_a_runs_folder_may_have_any_name(tmp_path, name):
    folder = RunFolder(tmp_path / name)
    harness = {"name": "pi", "settings": {"argv": ["pi"]}}
    config = {"name": "x", "policy": {"path": "p"}, "tasks": {"set": "lookup"}, "harnesses": [harness]}
    write_json(folder.config_path, config)
    for url in (folder.store_url(), store_url(str(folder.root))):
        assert file_of(url) == tmp_path / name / "traces.db"
    folder.config_path.unlink()
    assert file_of(store_url(str(folder.root))) == tmp_path / name / "traces.db"
