"""Every way of tampering with a recorded run is named by `verify`; an untouched one is green."""

import sqlite3
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from harnessgym.cli.traces import app
from harnessgym.errors import StoreError
from harnessgym.routed_experts import RoutedExperts
from harnessgym.store import TraceStore, policies, runs, tables
from harnessgym.traces.token_accounting import exclude_rest
from harnessgym.traces.verification.verify import VerificationReport, verify

pytestmark = pytest.mark.filterwarnings("error")


@dataclass
class World:
    """A realistic run: two consumed groups, one open, one of an evaluation; branches, siblings, side
    calls, three versions.
    """

    chain: list[str]
    """Calls of a sealed session in a line, each continuing the one before."""
    branches: tuple[str, str]
    """Two calls that continue one call with different prompts."""
    siblings: tuple[str, str]
    """Two calls with one prompt."""
    mixed: str
    """A call sampled under two versions."""
    side: str
    last_open: str
    """The last call of a session that is not sealed."""
    rollout: str
    """Consumed by the second step."""
    evaluation: str


def experts_of(start: int, tokens: int) -> RoutedExperts:
    """What an engine reports of these tokens."""
    return RoutedExperts(start, np.arange(tokens * 6, dtype=np.uint8).reshape(tokens, 3, 2))


@pytest.fixture
def world(recording) -> World:
    recording.publish(0)
    first_group, first = recording.group()
    linear, forked = recording.session(first[0]), recording.session(first[1])
    chain = [linear.call(7, experts=experts_of(0, 10))]
    for turn in range(3):
        chain.append(linear.call(4, after=chain[-1], experts=experts_of(10 + 8 * turn, 8)))
    root = forked.call(6)
    branches = forked.call(3, after=root), forked.call(5, after=root)
    shared = forked.draw(4)
    siblings = forked.call(shared, after=branches[0]), forked.call(shared, after=branches[0])
    forked.call(8, after=siblings[1], kind="compaction")
    for session in (linear, forked):
        session.seal()
    recording.finish(first)
    recording.train(first_group, first, version=1, parent=0)
    second_group, second = recording.group()
    inner, outer, other = (
        recording.session(second[0]),
        recording.session(second[0]),
        recording.session(second[1]),
    )
    mixed = inner.call(9, versions=[0, 0, 1, 1, 1])
    side = inner.call(3, kind="side", versions=[1, 1])
    inner.call(2, after=mixed, status="aborted", versions=[1])
    outer.call(5, status="acknowledged", versions=[1])
    other.call(5, versions=[0, 1])
    other.call(5, status="error")
    for session in (inner, outer, other):
        session.seal()
    recording.finish(second)
    recording.train(second_group, second, version=2, parent=1)
    _, third = recording.group()
    open_session = recording.session(third[0])
    last_open = open_session.call(3, after=open_session.call(6, versions=[2, 2]), versions=[2])
    open_session.call(status="intent")
    last_open = open_session.call(3, versions=[2, 2])
    _, (evaluation,) = recording.group(1, purpose="evaluation")
    recording.session(evaluation).call(5, versions=[2], sampling={"temperature": 0.0})
    return World(chain, branches, siblings, mixed, side, last_open, second[0], evaluation)


def checked(recording) -> VerificationReport:
    return verify(recording.store)


def test_an_untouched_run_is_green_and_everything_was_looked_at(recording, world):
    seen: list[tuple[int, int]] = []
    report = verify(recording.store, recording.run_id, lambda done, total: seen.append((done, total)))
    assert report.findings == ()
    assert report.ok
    counts = report.checked
    assert (counts.sessions, counts.calls, counts.unfinished, counts.rollouts) == (7, 21, 1, 4)
    assert counts.trained_tokens + counts.excluded_tokens == sum((4 * 4, 6 * 4, 5 + 2 + 1 + 1, 2))
    assert counts.segments == 20 + 19
    assert counts.tokens > 0
    assert counts.routed_tokens == 10 + 3 * 8
    assert seen == [(done, 7) for done in range(8)]


def test_a_connection_is_verified_like_a_store(recording, world):
    assert recording.store.read(verify) == verify(recording.store)


def test_an_unknown_run_is_refused(recording):
    with pytest.raises(StoreError, match=recording.run_id):
        verify(recording.store, "nothing")


def flip_blob(column: str, segment: str, call: Callable[[World], str], value: bytes):
    def mutate(raw: sqlite3.Connection, world: World) -> None:
        (name,) = raw.execute(f"SELECT {segment} FROM calls WHERE id = ?", (call(world),)).fetchone()
        (blob,) = raw.execute(f"SELECT {column} FROM segments WHERE id = ?", (name,)).fetchone()
        assert blob[:4] != value
        raw.execute(f"UPDATE segments SET {column} = ? WHERE id = ?", (value + blob[4:], name))

    return mutate


def sql(statement: str, *names: Callable[[World], str]):
    def mutate(raw: sqlite3.Connection, world: World) -> None:
        assert raw.execute(statement, [name(world) for name in names]).rowcount == 1

    return mutate


def swap(column: str, pair: Callable[[World], tuple[str, str]]):
    def mutate(raw: sqlite3.Connection, world: World) -> None:
        one, other = pair(world)
        values = [
            raw.execute(f"SELECT {column} FROM calls WHERE id = ?", (name,)).fetchone()[0]
            for name in (one, other)
        ]
        assert values[0] != values[1]
        raw.execute(f"UPDATE calls SET {column} = -1 WHERE id = ?", (one,))
        raw.execute(f"UPDATE calls SET {column} = ? WHERE id = ?", (values[0], other))
        raw.execute(f"UPDATE calls SET {column} = ? WHERE id = ?", (values[1], one))

    return mutate


def drop(call: Callable[[World], str], *, whole: bool):
    """`whole` also removes the completion and what nothing else refers to, as if the call had never been."""

    def mutate(raw: sqlite3.Connection, world: World) -> None:
        name = call(world)
        (segment,) = raw.execute("SELECT completion_segment FROM calls WHERE id = ?", (name,)).fetchone()
        raw.execute("DELETE FROM calls WHERE id = ?", (name,))
        if whole:
            raw.execute("DELETE FROM segments WHERE id = ?", (segment,))

    return mutate


def train_again(raw: sqlite3.Connection, world: World) -> None:
    row = raw.execute("SELECT * FROM trained WHERE rollout_id = ?", (world.rollout,)).fetchone()
    names = [item[1] for item in raw.execute("PRAGMA table_info(trained)")]
    values = dict(zip(names, row, strict=True)) | {"id": "again", "version": 1}
    raw.execute(f"INSERT INTO trained VALUES ({', '.join('?' * len(names))})", list(values.values()))


def steal_completion(raw: sqlite3.Connection, world: World) -> None:
    """Two calls under one prompt claim the same completion."""
    one, other = world.siblings
    values = raw.execute(
        "SELECT completion_segment, completion_hash FROM calls WHERE id = ?", (one,)
    ).fetchone()
    raw.execute("UPDATE calls SET completion_segment = ?, completion_hash = ? WHERE id = ?", (*values, other))


def middle(world: World) -> str:
    return world.chain[1]


def last(world: World) -> str:
    return world.chain[-1]


ID, LOGPROB = struct.pack("<i", 77_777), struct.pack("<f", -0.125)
POSITIVE, NAN = struct.pack("<f", 0.5), struct.pack("<f", float("nan"))
COMPLETION = "(SELECT completion_segment FROM calls WHERE id = ?)"
SPANS = "UPDATE calls SET version_spans = '{}' WHERE id = ?"
MUTATIONS = {
    "flip a prompt id": (flip_blob("ids", "prompt_segment", middle, ID), {"prompt_hash", "segment_hash"}),
    "flip a sampled id": (flip_blob("ids", "completion_segment", last, ID), {"completion_hash", "segment_hash"}),
    "flip a logprob": (flip_blob("logprobs", "completion_segment", last, LOGPROB), {"completion_hash"}),
    "a positive logprob": (flip_blob("logprobs", "completion_segment", last, POSITIVE), {"logprob"}),
    "a logprob that is no number": (flip_blob("logprobs", "completion_segment", last, NAN), {"logprob"}),
    "drop a middle call": (drop(middle, whole=False), {"ordinal_gap", "seal_count", "reference", "segment_orphan"}),
    "drop the last call": (drop(last, whole=True), {"seal_count"}),
    "drop the last call of an open session": (drop(lambda w: w.last_open, whole=False), {"segment_orphan"}),
    "swap the prompts of two branches": (swap("prompt_segment", lambda w: w.branches), {"prompt_hash", "completion_parent"}),
    "swap the completions of two branches": (swap("completion_segment", lambda w: w.branches), {"completion_parent"}),
    "swap the completions of two siblings": (swap("completion_segment", lambda w: w.siblings), {"completion_hash"}),
    "claim a sibling's completion": (steal_completion, {"completion_parent", "segment_orphan"}),
    "shift a version span": (sql(SPANS.format("[[0, 3, 0], [3, 5, 1]]"), lambda w: w.mixed), {"completion_hash"}),
    "shorten a version span": (sql(SPANS.format("[[0, 2, 0], [2, 4, 1]]"), lambda w: w.mixed), {"span_coverage"}),
    "overlap version spans": (sql(SPANS.format("[[0, 2, 0], [1, 5, 1]]"), lambda w: w.mixed), {"span_coverage"}),
    "spans that are none": (sql(SPANS.format('{"0": 1}'), lambda w: w.side), {"span_coverage"}),
    "an unpublished version": (sql(SPANS.format("[[0, 5, 9]]"), lambda w: w.mixed), {"span_version", "staleness"}),
    "change a parent": (
        sql("UPDATE calls SET parent_call_id = ? WHERE id = ?", lambda w: w.branches[0], last), {"parent_prefix", "reference"},
    ),
    "change a parent within the session": (
        sql("UPDATE calls SET parent_call_id = ? WHERE id = ?", lambda w: w.chain[0], last), {"parent_prefix"},
    ),
    "change a parent to a sibling": (
        sql("UPDATE calls SET parent_call_id = ? WHERE kind = 'compaction' AND ? <> ''", lambda w: w.siblings[0], last),
        {"parent_prefix"},
    ),
    "remove a parent": (sql("UPDATE calls SET parent_call_id = NULL WHERE id = ?", last), {"parent_prefix"}),
    "a parent that is not there": (sql("UPDATE calls SET parent_call_id = 'x' WHERE id = ?", last), {"reference"}),
    "reorder ordinals": (swap("ordinal", lambda w: (w.chain[1], w.chain[2])), {"ordinal_order"}),
    "skip an ordinal": (sql("UPDATE calls SET ordinal = 9 WHERE id = ?", last), {"ordinal_gap"}),
    "lengthen a prompt": (sql("UPDATE calls SET prompt_len = prompt_len + 1 WHERE id = ?", last), {"prompt_length", "usage"}),
    "truncate ids": (
        sql(
            f"UPDATE segments SET ids = substr(ids, 1, 5) WHERE id = {COMPLETION}", last
        ),
        {"segment_blob", "segment_hash", "completion_length", "completion_hash"},
    ),
    "truncate logprobs": (
        sql(
            f"UPDATE segments SET logprobs = substr(logprobs, 1, 6) WHERE id = {COMPLETION}",
            last,
        ),
        {"segment_blob", "completion_hash"},
    ),
    "a segment that is its own parent": (
        sql("UPDATE segments SET parent_id = id WHERE id = (SELECT prompt_segment FROM calls WHERE id = ?)", last),
        {"segment_tree", "parent_prefix"},
    ),
    "forget a completion": (
        sql("UPDATE calls SET completion_segment = NULL WHERE id = ?", last), {"completion_missing", "segment_orphan"},
    ),
    "a prompt for a completion": (
        sql("UPDATE calls SET completion_segment = prompt_segment WHERE id = ?", last), {"reference", "segment_orphan"},
    ),
    "a completion for a prompt": (
        sql("UPDATE calls SET prompt_segment = completion_segment WHERE id = ?", last), {"reference", "completion_parent"},
    ),
    "another usage": (sql("""UPDATE calls SET usage = '{"completion_tokens": 3}' WHERE id = ?""", last), {"usage"}),
    "move a call to another rollout": (
        sql("UPDATE calls SET rollout_id = ? WHERE id = ?", lambda w: w.rollout, last), {"reference", "account"},
    ),
    "train a rollout twice": (train_again, {"trained_twice"}),
    "train a group with too few graded rollouts": (
        sql("UPDATE rollouts SET status = 'failed' WHERE id = ?", lambda w: w.rollout), {"min_group"},
    ),
    "give up a group that has enough": (
        sql(
            "UPDATE groups SET state = 'dropped', given_up = 'too_few' WHERE id = "
            "(SELECT group_id FROM rollouts WHERE id = ?)",
            lambda w: w.rollout,
        ),
        {"min_group"},
    ),
    "train fewer tokens": (sql("UPDATE trained SET tokens = 1 WHERE rollout_id = ?", lambda w: w.rollout), {"account"}),
    "train an evaluation": (
        sql("UPDATE trained SET rollout_id = ? WHERE rollout_id = ?", lambda w: w.evaluation, lambda w: w.rollout),
        {"trained_purpose"},
    ),
    "remove an exclusion": (sql("DELETE FROM exclusions WHERE call_id = ?", lambda w: w.side), {"account"}),
    "exclude more than was sampled": (
        sql("""UPDATE exclusions SET "end" = 9 WHERE call_id = ?""", lambda w: w.side), {"exclusion_range", "account"},
    ),
    "exclude a call of another rollout": (
        sql("UPDATE exclusions SET call_id = ? WHERE call_id = ?", last, lambda w: w.side), {"exclusion_range"},
    ),
    "exclude twice": (
        sql(
            """INSERT INTO exclusions SELECT 'again', rollout_id, call_id, 1, "end", reason, created_at FROM exclusions
            WHERE call_id = ?""",
            lambda w: w.side,
        ),
        {"exclusion_range", "account"},
    ),
    "train tokens that are too old": (
        sql("UPDATE runs SET config = ? WHERE name = 'demo'", lambda w: '{"trainer": {"max_staleness": 0}}'), {"staleness"},
    ),
    "shorten an advantage": (sql(f"""UPDATE advantages SET "end" = 3 WHERE segment_id = {COMPLETION}""", last), {"advantage"}),
    "lengthen an advantage": (sql(f"""UPDATE advantages SET "end" = 5 WHERE segment_id = {COMPLETION}""", last), {"advantage"}),
    "drop an advantage": (sql(f"DELETE FROM advantages WHERE segment_id = {COMPLETION}", last), {"advantage"}),
    "give an excluded token an advantage": (
        sql(
            f"UPDATE advantages SET segment_id = {COMPLETION} WHERE segment_id = {COMPLETION}",
            lambda w: w.side,
            lambda w: w.mixed,
        ),
        {"advantage"},
    ),
    "give two advantages to a token": (
        sql(
            f"""INSERT INTO advantages SELECT 'again', trained_id, segment_id, 1, "end", value FROM advantages
            WHERE segment_id = {COMPLETION}""",
            last,
        ),
        {"advantage"},
    ),
    "experts of fewer tokens": (sql("UPDATE routed_experts SET tokens = 7 WHERE call_id = ?", last), {"routed_experts"}),
    "experts of tokens that there are not": (
        sql("UPDATE routed_experts SET start = start + 2 WHERE call_id = ?", last), {"routed_experts"},
    ),
    "experts before the first token": (sql("UPDATE routed_experts SET start = -1 WHERE call_id = ?", last), {"routed_experts"}),
    "experts of another shape": (
        sql("UPDATE routed_experts SET layers = 2, top_k = 3 WHERE call_id = ?", last), {"routed_experts"},
    ),
    "experts in two bytes each": (sql("UPDATE routed_experts SET width = 2 WHERE call_id = ?", last), {"routed_experts"}),
    "experts that are none": (sql("UPDATE routed_experts SET experts = X'0102' WHERE call_id = ?", last), {"routed_experts"}),
    "train tokens of a later version": (
        sql("UPDATE policy_versions SET parent_version = 0 WHERE version = 2 AND ? <> ''", last), {"staleness"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mutate", "kinds"), MUTATIONS.values(), ids=list(MUTATIONS))
def test_every_mutation_is_named(recording, world, database, mutate, kinds):
    raw = sqlite3.connect(database)
    with raw:
        mutate(raw, world)
    raw.close()
    report = checked(recording)
    assert kinds <= report.kinds, report.findings
    assert not report.ok
    assert all(finding.where and finding.message for finding in report.findings)


def test_a_rollout_trained_again_after_its_version_was_orphaned_is_green(recording):
    recording.publish(0)
    group_id, (rollout_id,) = recording.group(1)
    recording.session(rollout_id).call(versions=[0, 0])
    recording.finish([rollout_id])
    recording.train(group_id, [rollout_id], version=1, parent=0)
    recording.store.write(lambda conn: policies.orphan_after(conn, recording.policy_id, 0))
    assert checked(recording).ok
    recording.train(group_id, [rollout_id], version=2, parent=0)
    assert checked(recording).ok
    recording.store.write(lambda conn: runs.set_status(conn, recording.run_id, "done"))
    assert checked(recording).checked.trained_tokens == 2


@pytest.mark.parametrize("reuse", [0, 1, 2])
def test_a_rollout_may_be_trained_again_as_often_as_the_run_allows(recording, reuse):
    config = {"trainer": {"max_staleness": 9}, "replay": {"reuse": reuse}}
    recording.store.write(lambda conn: conn.execute(update(tables.runs).values(config=config)))
    recording.publish(0)
    group_id, (rollout_id,) = recording.group(1)
    recording.session(rollout_id).call(versions=[0, 0])
    recording.finish([rollout_id])
    for version in range(1, 5):
        recording.train(group_id, [rollout_id], version=version, parent=version - 1)
        report = checked(recording)
        assert report.kinds == (set() if version <= 1 + reuse else {"trained_twice"}), report.findings
        assert report.checked.trained_tokens == 2
    assert recording.store.read(
        lambda conn: conn.exec_driver_sql("SELECT sampled, trained, untrained FROM v_token_account").all()
    ) == [(2, 2, 0)]
    recording.store.write(lambda conn: policies.orphan_after(conn, recording.policy_id, 1))
    assert checked(recording).ok


def test_when_a_run_is_done_every_training_rollout_must_close(recording, world):
    recording.store.write(lambda conn: runs.set_status(conn, recording.run_id, "done"))
    assert checked(recording).kinds == {"account"}
    recording.store.write(lambda conn: exclude_rest(conn, recording.run_id))
    assert checked(recording).ok


def test_a_parent_is_proven_by_tokens_where_no_segment_connects_the_two(recording, database):
    """A client that sends the whole text again: same tokens, another root."""
    _, (rollout_id,) = recording.group(1)
    recording.publish(0)
    session = recording.session(rollout_id)
    first = session.call([1, 2, 3])
    whole = session.forests[None].ids(session.forests[None].leaves()[0].id)
    good, bad = session.call([*whole, 9]), session.call([*whole[:-1], 9, 9])
    raw = sqlite3.connect(database)
    with raw:
        raw.execute(
            "UPDATE calls SET parent_call_id = ?, parent_evidence = 'token_prefix' WHERE ordinal > 0",
            (first,),
        )
    raw.close()
    assert [(finding.kind, finding.where) for finding in checked(recording).findings] == [
        ("parent_prefix", f"call {bad}")
    ]
    assert good != bad


def test_only_the_asked_run_is_checked(recording, world, database):
    other = recording.store.write(lambda conn: runs.add(conn, "other", {}, "test", "training"))
    raw = sqlite3.connect(database)
    with raw:
        MUTATIONS["flip a logprob"][0](raw, world)
    raw.close()
    assert verify(recording.store, other).ok
    assert not verify(recording.store, recording.run_id).ok


@pytest.mark.postgres
def test_a_reference_that_leads_nowhere_is_found_on_postgresql_too(postgres):
    with TraceStore.create(postgres.create_database()) as store:
        run_id = store.write(lambda conn: runs.add(conn, "demo", {}, "test", "training"))
        assert verify(store, run_id).ok

        def dangle(conn):
            conn.exec_driver_sql(
                "SET LOCAL session_replication_role = replica"
            )  # as a restored dump may have been written
            conn.exec_driver_sql(
                "INSERT INTO policies (id, run_id, name, created_at) VALUES ('p', 'gone', 'x', 0)"
            )

        store.write(dangle)
        assert [(item.kind, item.where) for item in verify(store).findings] == [
            ("reference", "policies row p")
        ]


def test_the_command_is_green_for_a_folder_a_file_and_a_url(world, database):
    for source in (database.parent, database, f"sqlite:///{database}"):
        result = CliRunner().invoke(app, ["verify", str(source)])
        assert result.exit_code == 0, result.output
        assert "Everything agrees" in result.output


def test_the_command_is_red_and_names_what_it_found(world, database):
    raw = sqlite3.connect(database)
    with raw:
        raw.execute("UPDATE calls SET completion_hash = 'x'")
    raw.close()
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["verify", str(database)])
    assert result.exit_code == 1
    assert "completion_hash" in result.output
    assert "and 14 more" in result.output


def test_a_missing_database_is_said_so(tmp_path):
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert isinstance(result.exception, StoreError)
    assert "no trace database" in str(result.exception)


def test_show_lists_rollouts_and_the_calls_of_one(world, database):
    runner = CliRunner(env={"COLUMNS": "200"})
    assert world.rollout in runner.invoke(app, ["show", str(database)]).output
    assert "More than one" in str(runner.invoke(app, ["show", str(database), world.rollout[:3]]).exception)
    shown = runner.invoke(app, ["show", str(database), world.rollout])
    assert "side" in shown.output
    assert "0,1" in shown.output
    assert isinstance(runner.invoke(app, ["show", str(database), "nothing"]).exception, StoreError)


def test_the_store_is_left_as_it_was(world, database):
    def dump() -> list[str]:
        raw = sqlite3.connect(database)
        lines = list(raw.iterdump())
        raw.close()
        return lines

    before = dump()
    with TraceStore.open(f"sqlite:///{database}") as store:
        verify(store)
    assert dump() == before
