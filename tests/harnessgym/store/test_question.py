"""Questions in plain SQL read, and change nothing."""

import sqlite3

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import rewards
from harnessgym.store.plain_sql import select_file_rows, select_rows
from harnessgym.store.rewards import RewardRow


def test_a_query_reads_with_names_and_writes_nothing(store, rollout_id):
    query = "SELECT id, status FROM rollouts WHERE id = :rollout_id AND created_at > :after"
    given = {"rollout_id": rollout_id, "after": 0.0}
    assert store.read(lambda conn: select_rows(conn, query, given)) == [
        {"id": rollout_id, "status": "running"}
    ]
    for wrong in (
        "DELETE FROM rollouts",
        "UPDATE rollouts SET seed = 7",
        "CREATE TABLE mine (id INTEGER)",
        "SELECT nothing",
    ):
        with pytest.raises(StoreError):
            store.read(lambda conn, wrong=wrong: select_rows(conn, wrong, {}))
    assert store.read(lambda conn: select_rows(conn, "SELECT count(*) AS n FROM rollouts", {})) == [{"n": 1}]
    given = RewardRow(rollout_id, "rollout", rollout_id, "task", 1.0, "t")
    assert store.write(lambda conn: rewards.add(conn, given)), "connections that were asked can write again"


def test_a_second_statement_is_refused(store, rollout_id):
    for query in (
        "SELECT 1 AS n; COMMIT; UPDATE rollouts SET seed = 7",
        "SELECT 1 AS n; COMMIT; UPDATE rollouts SET seed = 7 WHERE id = :rollout_id",
    ):
        with pytest.raises(StoreError):
            store.read(lambda conn, query=query: select_rows(conn, query, {"rollout_id": rollout_id}))
    query = "SELECT seed, 'a%' AS share FROM rollouts WHERE id LIKE '%'"
    assert store.read(lambda conn: select_rows(conn, query, {"rollout_id": rollout_id})) == [
        {"seed": 0, "share": "a%"}
    ]


def test_a_file_is_read_in_its_time_and_left_as_it_is(tmp_path):
    path = tmp_path / "it's ?mode=rw#.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE orders (id INTEGER)")
        raw.execute("INSERT INTO orders VALUES (3)")
    raw.close()
    assert select_file_rows(path, "SELECT id FROM orders WHERE id > :least", {"least": 1}) == [{"id": 3}]
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    for wrong in ("DELETE FROM orders", "SELECT nothing FROM orders", endless):
        with pytest.raises(StoreError, match="failed on"):
            select_file_rows(path, wrong, {}, timeout_s=0.2)
    with pytest.raises(StoreError, match="unable to open"):
        select_file_rows(tmp_path / "none.db", "SELECT 1", {})
    assert not (tmp_path / "none.db").exists()
