"""A run in one file: across SQLite and PostgreSQL in both directions every row and every body is the same."""

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import create_engine, select, text, update

from harnessgym.errors import SchemaError, StoreError
from harnessgym.store import TraceStore, freezing, runs
from harnessgym.store.calls import segments_of
from harnessgym.store.run_file import export_run, import_run, run_of
from harnessgym.store.tables import calls, groups, rollouts, segments
from harnessgym.task import Task
from harnessgym.tokens import narrow_ids
from harnessgym.traces.verification.verify import verify
from tests.harnessgym.cli.conftest import record
from tests.harnessgym.store.recorded_runs import (
    add_rollouts,
    begin_run,
    bodies_of,
    end_run,
    rows_of_everything,
)


@pytest.fixture(scope="session")
def proxied(tmp_path_factory):
    """What a real proxy recorded, with events, agents, trained rollouts and advantages; one rollout of it
    is frozen.
    """
    recorded = asyncio.run(record(tmp_path_factory.mktemp("proxied") / "traces.db"))
    with TraceStore.open(f"sqlite:///{recorded.path}") as store:
        store.write(lambda conn: freezing.freeze(conn, recorded.rollouts[:1]))
    return recorded


@pytest.fixture(scope="session")
def exported(proxied, tmp_path_factory):
    """The same as a file; tests copy it."""
    out = tmp_path_factory.mktemp("exported") / "run.hgrun"
    export_run(f"sqlite:///{proxied.path}", proxied.run_id, out)
    return out


@pytest.fixture
def file(exported, tmp_path):
    return shutil.copy(exported, tmp_path / "given.hgrun")


def contents(url):
    """Rows, the verdict on them, and every body."""
    with TraceStore.open(url) as store:
        rows = rows_of_everything(store)
        return rows, verify(store), bodies_of(store, rows["calls"])


def test_every_row_and_every_body_goes_there_and_back(make_url, proxied, tmp_path):
    original = contents(f"sqlite:///{proxied.path}")
    rows, report, sent = original
    assert report.ok
    # `test_expert_rows.py` copies routed experts, which few engines report.
    assert all(rows[table] for table in rows if table != "routed_experts")
    assert all(sent.values())
    url, first, second = make_url(), tmp_path / "a.hgrun", tmp_path / "b.hgrun"
    moved = export_run(f"sqlite:///{proxied.path}", "latest", first)
    assert (moved.run_id, moved.rollouts, moved.rows["calls"]) == (proxied.run_id, 2, 14)
    assert import_run(first, url).rows == moved.rows
    assert contents(url) == original
    assert export_run(url, proxied.run_id[:20], second).rows == moved.rows
    assert contents(f"sqlite:///{second}") == contents(f"sqlite:///{first}") == original


def test_what_is_null_stays_null(make_url, file):
    """JSON knows a null of its own, which is something."""
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE calls SET usage = NULL, timings = 'null' WHERE ordinal = 0 AND rollout_id IN "
                    "(SELECT id FROM rollouts WHERE NOT frozen)")  # fmt: skip
        raw.commit()
    url = make_url()
    import_run(file, url)
    with TraceStore.open(url) as store:
        query = text("SELECT count(*), count(usage), count(timings) FROM calls WHERE ordinal = 0")
        assert store.read(lambda conn: conn.execute(query).one()) == (2, 1, 2)


def test_a_frozen_rollout_stays_frozen(make_url, file, proxied):
    url = make_url()
    import_run(file, url)
    with TraceStore.open(url) as store, pytest.raises(StoreError, match="frozen"):
        store.write(
            lambda conn: conn.execute(
                update(calls).where(calls.c.rollout_id == proxied.rollouts[0]).values(ordinal=9)
            )
        )


def test_the_file_holds_this_run_alone_and_is_one_file(store, tmp_path):
    one, other = begin_run(store, "one"), begin_run(store, "other", seed=8)
    _, ids, sent = add_rollouts(one)
    add_rollouts(other, 3)
    out = tmp_path / "files" / "one.hgrun"
    out.parent.mkdir()
    seen = []
    export_run(store.url, one.run_id, out, lambda *progress: seen.append(progress))
    assert seen == [(0, 2), (2, 2)]
    assert list(out.parent.iterdir()) == [out]
    with TraceStore.open(f"sqlite:///{out}") as written:
        rows = rows_of_everything(written)
        assert set(rows["runs"]) == {one.run_id}
        assert set(rows["rollouts"]) == set(ids)
        assert bodies_of(written, sent) == sent
    everything = rows_of_everything(store)
    assert all(rows[table] == {key: everything[table][key] for key in rows[table]} for table in rows)


def test_a_run_that_is_there_is_refused_and_nothing_changes(make_url, file):
    url = make_url()
    import_run(file, url)
    before = contents(url)
    with pytest.raises(StoreError, match=r"has run .* already: nothing was changed"):
        import_run(file, url)
    assert contents(url) == before


def test_other_runs_stay_and_tasks_are_shared(make_url, file, proxied):
    url = make_url()
    with TraceStore.open(url) as store:
        add_rollouts(begin_run(store))
        task_id = store.write(lambda conn: runs.add_task(conn, "fruit", Task("count", "Count the fruit.")))
        before = rows_of_everything(store)
    import_run(file, url)
    rows, report, _ = contents(url)
    assert report.ok
    assert {table: {key: rows[table][key] for key in before[table]} for table in before} == before
    assert len(rows["tasks"]) == 2
    own = {
        row["task_id"]
        for table in ("groups", "rollouts")
        for row in rows[table].values()
        if row["run_id"] == proxied.run_id
    }
    assert own == {task_id}


def test_rows_come_behind_those_that_they_name_whatever_their_times(make_url, tmp_path):
    """A clock that was set back while a run recorded."""
    source, target = make_url(), make_url()
    with TraceStore.open(source) as store:
        recording = begin_run(store)
        add_rollouts(recording, turns=4)
        for table in (calls, segments):
            backwards = update(table).values(created_at=3e9 - table.c.created_at)
            store.write(lambda conn, backwards=backwards: conn.execute(backwards))
    export_run(source, "latest", tmp_path / "run.hgrun")
    import_run(tmp_path / "run.hgrun", target)
    assert contents(target) == contents(source)


def test_an_interrupted_import_leaves_nothing(make_url, file):
    url = make_url()
    before = contents(url)

    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_run(file, url, interrupt)
    assert contents(url) == before
    import_run(file, url)
    assert contents(url)[1].checked.rollouts == 2


def test_an_interrupted_export_leaves_no_file(store, tmp_path):
    add_rollouts(begin_run(store))
    folder = tmp_path / "files"
    folder.mkdir()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_run(store.url, "latest", folder / "run.hgrun", interrupt)
    assert list(folder.iterdir()) == []
    (folder / "run.hgrun.part").write_text("left by one that was killed")
    export_run(store.url, "latest", folder / "run.hgrun")
    assert [path.name for path in folder.iterdir()] == ["run.hgrun"]
    before = (folder / "run.hgrun").read_bytes()
    with pytest.raises(StoreError, match=r"run.hgrun exists already: remove it"):
        export_run(store.url, "latest", folder / "run.hgrun")
    assert (folder / "run.hgrun").read_bytes() == before


def test_one_that_goes_on_is_written_as_it_was_at_one_moment(store, tmp_path):
    recording = begin_run(store)
    add_rollouts(recording)

    def more(done, total):
        if not done:
            add_rollouts(recording)

    assert export_run(store.url, "latest", tmp_path / "run.hgrun", more).rollouts == 2
    rows, report, _ = contents(f"sqlite:///{tmp_path / 'run.hgrun'}")
    assert (len(rows["groups"]), report.checked.calls) == (1, 4)
    assert len(rows_of_everything(store)["rollouts"]) == 4


def test_a_database_is_made_where_there_is_none(make_url, file, proxied):
    url = make_url(empty=True)
    import_run(file, url)
    assert contents(url) == contents(f"sqlite:///{proxied.path}")


def test_a_target_of_another_revision_is_refused(make_url, file):
    url = make_url()
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '0004'"))
    engine.dispose()
    with pytest.raises(SchemaError, match="harnessgym store migrate"):
        import_run(file, url)


def without_sharing(raw, path):
    """Write out bodies and prompts that share parts with earlier ones in a way that earlier releases do not
    know. Returns the columns that changed, by table and row.
    """
    with TraceStore.open(f"sqlite:///{path}") as store:
        session_ids = [row[0] for row in raw.execute("SELECT id FROM sessions")]
        known = store.read(lambda conn: segments_of(conn, session_ids))
    bodies = {
        row[0]: (row[1], row[2], json.loads(row[3]), json.loads(row[4] or "[]"))
        for row in raw.execute("SELECT id, base_id, base_elements, message_hashes, base_runs FROM bodies")
    }

    def elements(body_id):
        base_id, leading, own, runs = bodies[body_id]
        base = elements(base_id) if base_id else []
        out, own = base[:leading], list(own)
        for at, start, count in runs:
            out += [own.pop(0) for _ in range(at - len(out))] + base[start : start + count]
        return out + own

    changed = {"bodies": {}, "segments": {}}
    for body_id in [body_id for body_id, (*_, shared) in bodies.items() if shared]:
        written = json.dumps(elements(body_id))
        changed["bodies"][body_id] = {"base_id": None, "base_elements": 0, "message_hashes": written}
        raw.execute(
            "UPDATE bodies SET base_id = NULL, base_elements = 0, message_hashes = ? WHERE id = ?",
            (written, body_id),
        )
    for (segment_id,) in raw.execute("SELECT id FROM segments WHERE copies IS NOT NULL").fetchall():
        ids = narrow_ids(known[segment_id].ids)
        changed["segments"][segment_id] = {"ids": ids, "copies": None}
        raw.execute("UPDATE segments SET ids = ? WHERE id = ?", (ids, segment_id))
    assert all(changed.values())
    return changed


def test_a_file_of_an_earlier_release_is_migrated_in_a_copy(make_url, file, proxied):
    with closing(sqlite3.connect(file)) as raw:
        for (view,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
            raw.execute(f"DROP VIEW {view}")
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {trigger}")
        written_out = without_sharing(raw, proxied.path)
        raw.execute("DROP TABLE routed_experts")
        raw.execute("DROP INDEX ix_groups_replaces")
        raw.execute("DROP INDEX ix_groups_batch")
        raw.execute("DROP INDEX ix_trained_version")
        raw.execute("PRAGMA writable_schema = ON")  # a column with a foreign key cannot be dropped
        for table in ("calls", "workers"):
            key = (
                rf",\s*CONSTRAINT fk_{table}_policy_id FOREIGN KEY\s*\(policy_id\) REFERENCES policies \(id\)"
            )
            (made,) = raw.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            assert re.search(key, made)
            raw.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (re.sub(key, "", made), table))
        raw.execute("PRAGMA writable_schema = RESET")
        for table, columns in (
            ("rollouts", ("cause", "grading", "started_at", "not_before")),
            ("tasks", ("payload",)),
            (
                "groups",
                (
                    "min_members",
                    "given_up",
                    "given_up_version",
                    "replaces",
                    "batch",
                    "place",
                    "submitted_versions",
                ),
            ),
            ("calls", ("policy_id",)),
            ("workers", ("policy_id",)),
            ("segments", ("copies",)),
            ("bodies", ("base_runs",)),
        ):
            for column in columns:
                raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        raw.execute("UPDATE alembic_version SET version_num = '0005'")
        raw.commit()
    before, url = file.read_bytes(), make_url()
    import_run(file, url)
    rows, report, sent = contents(f"sqlite:///{proxied.path}")
    for row in rows["rollouts"].values():
        row["started_at"] = None  # which that release did not know
    for table, changes in written_out.items():
        for row_id, columns in changes.items():
            rows[table][row_id].update(columns)
    for row in rows["bodies"].values():
        row["base_runs"] = None
    assert contents(url) == (rows, report, sent)
    assert file.read_bytes() == before


def test_a_file_of_a_later_release_is_refused(tmp_path, file):
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.commit()
    with pytest.raises(
        SchemaError, match=r"written by a later release \(schema revision 9999\).*Upgrade HarnessGym"
    ):
        import_run(file, f"sqlite:///{tmp_path / 'new.db'}")
    assert not (tmp_path / "new.db").exists()


def test_what_is_no_run_file_makes_no_database(tmp_path, migrated_file):
    new = f"sqlite:///{tmp_path / 'new.db'}"
    (tmp_path / "garbage").write_bytes(b"garbage" * 1_000)
    with closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        raw.execute("CREATE TABLE other (x integer)")
    for path, said in (
        (tmp_path / "nothing", "There is no file"),
        (tmp_path / "garbage", "not a trace database"),
        (tmp_path / "other.db", "is not a run file"),
        (migrated_file, "has 0 runs"),
    ):
        with pytest.raises(StoreError, match=said):
            import_run(path, new)
    assert not (tmp_path / "new.db").exists()


def test_a_database_with_several_runs_is_imported_one_by_one(tmp_path):
    path = tmp_path / "traces.db"
    with TraceStore.create(f"sqlite:///{path}") as store:
        ids = [begin_run(store, name).run_id for name in ("one", "other")]
    with pytest.raises(StoreError, match=rf"has 2 runs \({ids[0]}, {ids[1]}\).*harnessgym store export"):
        import_run(path, f"sqlite:///{tmp_path / 'new.db'}")


def test_a_run_is_named_by_how_it_begins(store):
    ids = [begin_run(store, name).run_id for name in ("one", "other")]
    for given, found in ((ids[0], ids[0]), (ids[1][:22], ids[1]), ("latest", ids[1])):
        assert store.read(lambda conn, given=given: run_of(conn, given)) == found
    for given, said in (
        ("x", "no run that begins with 'x'"),
        (ids[0][0], "More than one run .* beginning with '0'"),
    ):
        with pytest.raises(StoreError, match=f"{said}. It has: {ids[0]}, {ids[1]}"):
            store.read(lambda conn, given=given: run_of(conn, given))


def test_groups_keep_their_place(make_url, tmp_path):
    """And a run that is done is done."""
    source, target = make_url(), make_url()
    with TraceStore.open(source) as store:
        recording = begin_run(store)
        group_id, ids, _ = add_rollouts(recording)
        recording.train(group_id, ids, 1, 0)
        end_run(recording)
    export_run(source, "latest", tmp_path / "run.hgrun")
    import_run(tmp_path / "run.hgrun", target)
    with TraceStore.open(target) as store:
        assert store.read(runs.only).status == "done"
        assert store.read(lambda conn: conn.execute(select(groups.c.state)).scalar_one()) == "consumed"
        assert store.read(lambda conn: conn.execute(select(rollouts.c.slot)).scalars().all()) == [0, 1]
