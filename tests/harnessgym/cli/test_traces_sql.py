"""`traces sql` answers what is asked and changes nothing, whatever it is told; on each kind of database."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.plain_sql import ask as ask_plainly
from harnessgym.task import Task

WRITES = [
    "DELETE FROM calls",
    "UPDATE rollouts SET status = 'x'",
    "INSERT INTO leases VALUES ('a', 'b', 0)",
    "DROP TABLE advantages",
    "CREATE TABLE mine (a int)",
    "CREATE TEMPORARY TABLE mine (a int)",
]
ONLY_SQLITE = ["ATTACH '{folder}/new.db' AS other", "VACUUM INTO '{folder}/new.db'", "REINDEX"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request, recorded, tmp_path):
    """A database with a rollout in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{recorded.path}"
        return
    cluster = request.getfixturevalue("postgres")
    made = cluster.create_database()
    with TraceStore.create(made) as store:
        run = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        policy = store.write(lambda conn: policies.register(conn, run, "policy"))
        task = store.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
        spec = rollouts.GroupSpec(run, task, policy, "train", 0, 0, {}, ("a", "b"), "process", (0, 1))
        store.write(lambda conn: rollouts.submit(conn, spec))
    yield made
    cluster.drop_database(made)


def test_a_query_is_answered(url, ask):
    found = json.loads(ask("sql", url, "SELECT count(*) AS n, 'x' AS letter FROM v_rollout", "--json").stdout)
    assert found == [{"n": 2, "letter": "x"}]
    lines = ask("sql", url, "SELECT harness, slot FROM rollouts ORDER BY slot").output.split()
    assert lines == ["harness", "slot", "a", "0", "b", "1"]


@pytest.mark.parametrize("statement", WRITES)
def test_a_statement_that_writes_is_refused(url, ask, statement):
    error = ask("sql", url, statement, status=1).exception
    assert isinstance(error, StoreError)
    assert "Only statements that read" in str(error)
    assert statement in str(error)
    assert ask_plainly(url, "SELECT count(*) FROM rollouts", 5).rows == ((2,),)


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_only_as_many_rows_as_are_wanted_are_read(url):
    """The third row cannot be computed."""
    found = ask_plainly(url, "SELECT 1 / (3 - i) AS n, repeat('x', 100000) FROM generate_series(1, 9) i", 1)
    assert (found.columns[0], found.more, len(found.rows)) == ("n", True, 1)
    endless = ask_plainly(url, "SELECT generate_series(1, 1000000000000) AS i", 3)
    assert (endless.rows, endless.more) == (((1,), (2,), (3,)), True)
    assert ask_plainly(url, "SELECT 1 AS n WHERE false", 3).columns == ("n",)
    assert ask_plainly(url, "/* a */ -- b\n (VALUES (1))", 3).rows == ((1,),)
    for statement in (
        "COMMIT",
        "SET search_path = x",
        "COPY runs TO STDOUT",
        "-- SELECT\nDO $$ BEGIN END $$",
        "",
    ):
        with pytest.raises(StoreError, match=r"Only statements that read.*begin with EXPLAIN, SELECT"):
            ask_plainly(url, statement, 1)


@pytest.mark.parametrize("statement", ONLY_SQLITE)
def test_what_writes_elsewhere_is_refused_too(recorded, ask, tmp_path, statement):
    error = ask("sql", recorded.path, statement.format(folder=tmp_path), status=1).exception
    assert "Only statements that read" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_one_statement_is_taken_and_no_more(url, ask):
    for behind in ("DELETE FROM calls", "COMMIT"):
        error = ask("sql", url, f"SELECT 1; {behind}", status=1).exception
        assert isinstance(error, StoreError)
    assert ask_plainly(url, "SELECT count(*) FROM rollouts", 5).rows == ((2,),)


def test_a_wrong_query_names_the_way_to_the_schema(url, ask):
    error = ask("sql", url, "SELECT nothing FROM nowhere", status=1).exception
    assert isinstance(error, StoreError)
    for part in ("nowhere", "--schema"):
        assert part in str(error)


def test_the_schema_is_listed(url, ask):
    found = {item["name"]: item for item in json.loads(ask("sql", url, "--schema", "--json").stdout)}
    assert found["v_rollout"]["kind"] == "view"
    assert found["calls"]["kind"] == "table"
    assert "completion_len" in {column["name"] for column in found["calls"]["columns"]}
    said = ask("sql", url, "--schema").output
    assert all(name in said for name in found)


def test_rows_are_limited_and_that_is_said(url, ask):
    result = ask("sql", url, "SELECT id FROM rollouts", "--limit", 1, "--json")
    assert len(json.loads(result.stdout)) == 1
    assert "--limit" in result.stderr
    assert ask("sql", url, "SELECT id FROM rollouts", "--limit", 2).stderr == ""


def test_csv_can_be_read_back(recorded, ask):
    said = ask("sql", recorded.path, "SELECT ordinal, ids, 'a,\"b' AS quoted FROM calls c JOIN segments s "
               "ON s.id = c.completion_segment ORDER BY c.id LIMIT 2", "--csv").stdout  # fmt: skip
    head, first, _ = csv.reader(io.StringIO(said))
    assert head == ["ordinal", "ids", "quoted"]
    assert (first[0], first[2]) == ("0", 'a,"b')
    assert len(bytes.fromhex(first[1])) % 4 == 0


def test_csv_and_json_exclude_each_other_and_something_must_be_asked(recorded, ask):
    assert "exclude each other" in ask("sql", recorded.path, "SELECT 1", "--csv", "--json", status=2).output
    assert "--schema" in ask("sql", recorded.path, status=2).output


def test_a_missing_database_is_not_made(tmp_path, ask):
    error = ask("sql", tmp_path / "no.db", "SELECT 1", status=1).exception
    assert "There is no folder or file" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_the_program_itself_says_one_line_and_status_2(recorded):
    argv = [sys.executable, "-m", "harnessgym", "traces", "sql", str(recorded.path), "DELETE FROM calls"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("harnessgym: Only statements that read")
    piped = subprocess.run(
        [*argv[:-1], "-"],
        input="SELECT 7 AS seven",
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert piped.stdout.split() == ["seven", "7"]
