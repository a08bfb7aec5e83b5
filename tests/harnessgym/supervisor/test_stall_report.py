"""Who waits for whom, thing by thing, from a real store."""

import time

import pytest
from sqlalchemy import update

from harnessgym.outcome.failure import StopReason
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, calls, leases, policies, rollouts, runs, sessions, workers
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import groups, new_id
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.children import Children
from harnessgym.supervisor.stall import StallWatch, stand
from harnessgym.supervisor.stall_report import Engines, hold_ups
from harnessgym.task import Task
from harnessgym.tokens import VersionSpan, hash_ids


class Site:
    """A run in training with version 0 and one ready engine."""

    def __init__(self, folder, **trainer):
        self.store = TraceStore.create(f"sqlite:///{folder}/traces.db")
        config = {"trainer": {"groups_per_step": 2, **trainer}}
        self.run = self.do(lambda conn: runs.add(conn, "x", config, "0", "training"))
        self.policy = self.do(lambda conn: policies.register(conn, self.run, "policy"))
        self.task = self.do(lambda conn: runs.add_task(conn, "set", Task("shop/7", "Do it.")))
        self.publish(0)
        self.engine("engine-0", 0)
        self.do(lambda conn: leases.announce_node(conn, self.run, "node@1", 60.0))

    def do(self, work):
        return self.store.write(work)

    def publish(self, version):
        row = PolicyVersion(version, None, "full", "", version, "", 0, committed=True, orphaned=False)
        self.do(lambda conn: policies.publish(conn, self.policy, row))

    def engine(self, name, version, state="ready", kind="embedded"):
        self.do(
            lambda conn: workers.upsert(
                conn, WorkerRow(name, self.run, kind, f"http://{name}", version, state)
            )
        )

    def lease(self, holder, number=0):
        self.do(lambda conn: leases.acquire(conn, f"update:{self.policy}:{number}", holder, 30.0))

    def group(self, ordinal, size=2, purpose="train"):
        spec = GroupSpec(
            self.run,
            self.task,
            self.policy,
            purpose,
            ordinal,
            0,
            {},
            ("pi",) * size,
            "process",
            tuple(range(size)),
        )
        return self.do(lambda conn: rollouts.submit(conn, spec))

    def claim(self, count=99):
        return self.do(lambda conn: rollouts.claim(conn, self.run, "node@1", 60.0, count))

    def finish(self, row):
        self.do(
            lambda conn: rollouts.finish(
                conn, RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": 1.0})
            )
        )

    def session(self, row):
        return self.do(lambda conn: sessions.add(conn, row.id, row.id, sampling={})).id

    def call(self, row, session, *, answered):
        prompt, answer = Segment(new_id(), session, "prompt", None, (1, 2)), None
        digest = hash_ids((1, 2))
        intent = CallIntent(
            new_id(),
            session,
            row.id,
            3,
            "chat",
            "policy",
            "keep",
            digest,
            digest,
            2,
            digest,
            prompt.id,
            upstream="",
        )
        self.do(lambda conn: calls.intend(conn, intent, prompt))
        if answered:
            answer = Segment(new_id(), session, "completion", prompt.id, (3,), (-0.1,))
            outcome = CallOutcome(
                intent.id, answer, (VersionSpan(0, 1, 0),), "d", "stop", None, "engine-0", {}, {}
            )
            self.do(lambda conn: calls.finish(conn, outcome))

    def said(self, status="training"):
        standing = self.store.read(lambda conn: stand(conn, self.run, self.policy, status))
        behind = frozenset(each.id for each in standing.workers if standing.behind(each))
        purposes = {"training": ("train",), "evaluating_after": ("after_sampled", "after_greedy")}[status]
        engines = Engines(standing.workers, standing.version, behind)
        return "\n".join(self.store.read(lambda conn: hold_ups(conn, self.run, purposes, engines)))


@pytest.fixture
def make_site(tmp_path):
    made = []

    def make(**trainer):
        made.append(Site(tmp_path, **trainer))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


def test_the_trainer_waits_for_a_group_and_each_of_its_rollouts_is_somewhere(make_site):
    site = make_site()
    site.group(0, size=5)
    site.group(1)
    prepared, waits, asks, works, over, *_ = site.claim(5)
    site.session(waits)
    site.call(asks, site.session(asks), answered=False)
    site.call(works, site.session(works), answered=True)
    sealed = site.session(over)
    site.call(over, sealed, answered=True)
    site.do(lambda conn: sessions.seal(conn, sealed))
    said = site.said()
    assert (
        "The trainer waits for group 0 (task shop/7, submitted 0 s ago under version 0): 5 of its 5 rollouts"
        in said
    )
    for row, words in (
        (prepared, "at node@1 has been prepared for 0 s: it waits for memory or disk"),
        (waits, "has not called: it waits for node.max_running"),
        (asks, "waits since 0 s for the answer to its call 3: from engine-0."),
        (works, "works by itself since its call 3, 0 s ago: its tools run"),
        (over, "is over, and is read back or graded"),
    ):
        line = next(line for line in said.splitlines() if row.id in line)
        assert f"(slot {row.slot}, attempt 0) at node@1" in line
        assert words in line
    assert "2 rollouts wait for a place at a node (node@1 has 5). node.max_running allows more" in said


def test_a_call_waits_for_an_engine_that_is_new_enough(make_site):
    site = make_site()
    newer = update(groups).where(groups.c.id == site.group(0)).values(submitted_version=4)
    site.do(lambda conn: conn.execute(newer))
    row, *_ = site.claim(1)
    site.call(row, site.session(row), answered=False)
    assert "from an engine, and none is ready with version 4 or later" in site.said()


def test_without_a_node_nobody_takes_rollouts(make_site):
    site = make_site()
    site.group(0)
    site.do(lambda conn: leases.withdraw_node(conn, site.run, "node@1"))
    assert (
        "No node takes rollouts, and 2 wait for one: it starts or has failed. See logs/node*.log"
        in site.said()
    )


def test_a_silent_node_and_attempts_that_are_put_off_are_named(make_site):
    site = make_site()
    site.group(0)
    first, second = site.claim()
    site.do(
        lambda conn: rollouts.fail(
            conn, RolloutOutcome(first.id, StopReason.SANDBOX_ERROR, "infrastructure_error"), 3, 50.0
        )
    )
    late = update(rollout_table).where(rollout_table.c.id == second.id).values(lease_expires=time.time() - 8)
    site.do(lambda conn: conn.execute(late))
    said = site.said()
    assert "1 rollouts failed and are tried again, the first in 50 s" in said
    assert "node@1 has said nothing for 8 s longer than its lease, and has 1 rollouts" in said
    assert "wait for a place" not in said


def test_a_whole_batch_is_the_trainers_turn(make_site):
    site = make_site()
    for ordinal in range(3):
        site.group(ordinal)
    rows = site.claim()
    for row in rows[:4]:
        site.finish(row)
    said = site.said()
    assert "A whole batch is complete (2 groups, 2 are wanted)" in said
    assert "The trainer waits" not in said
    for row in rows[4:]:
        site.finish(row)
    assert (
        "3 groups are complete and none is open: the trainer trains, or has failed to. See logs/trainer*.log."
        in site.said()
    )


def test_a_gap_is_waited_for_unless_order_does_not_matter(make_site, tmp_path):
    for when_stale, waits in (("wait", True), ("drop", False)):
        folder = tmp_path / when_stale
        folder.mkdir()
        site = Site(folder, when_stale=when_stale)
        for ordinal in range(3):
            site.group(ordinal)
        for row in site.claim()[2:]:
            site.finish(row)
        assert ("The trainer waits for group 0" in site.said()) == waits
        site.store.close()


def test_an_evaluation_waits_for_its_own_groups(make_site):
    site = make_site()
    site.group(0)
    site.group(0, 1, "after_greedy")
    said = site.said("evaluating_after")
    assert "The evaluation waits for group 0" in said
    assert "1 of its 1 rollouts" in said


def test_who_lacks_which_version_and_who_holds_the_lease(make_site):
    site = make_site()
    site.publish(1)
    site.engine("engine-1", 0, "updating")
    site.lease("engine-1")
    said = site.said()
    lease = f"update:{site.policy}:0"
    assert (
        f"engine-1 has been updating for 0 s, from version 0 to 1, and holds update lease {lease}, which ends in 30 s"
        in said
    )
    assert (
        "engine-0 serves version 0 and lacks version 1: it waits for an update lease, held by engine-1"
        in said
    )
    assert "nothing is submitted before engine-0, engine-1 serves the newest version" in said


def test_a_lease_that_nobody_holds_or_a_stranger_does(make_site):
    site = make_site()
    site.publish(1)
    assert "engine-0 serves version 0 and lacks version 1, though no update lease is held" in site.said()
    site.lease("gone")
    said = site.said()
    assert (
        f"gone holds update lease update:{site.policy}:0 and is no engine of this run: it ends in 30 s"
        in said
    )
    assert "it waits for an update lease, held by gone (ends in 30 s unless renewed)" in said
    site.do(lambda conn: leases.release(conn, f"update:{site.policy}:0", "gone"))
    site.lease("engine-0")
    assert f"it holds update lease update:{site.policy}:0 and reads the version's files" in site.said()


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (
            "dead",
            "embedded",
            "engine-1 is out of service: it is started again by itself; if not, see logs/engine-1.log.",
        ),
        ("dead", "vllm", "Start the engine, and `harnessgym weights-agent --worker_id engine-1`, again."),
        (
            "ended",
            "embedded",
            "engine-1 is out of service: it is started again by itself; if not, see logs/engine-1.log.",
        ),
        (
            "silent",
            "vllm",
            "is silent: it accepts connections and does not answer. Calls go to other engines",
        ),
        ("starting", "embedded", "engine-1 has been starting for 0 s"),
        (
            "draining",
            "vllm",
            (
                "engine-1 has been draining for 0 s, from version 0 to 0. If that lasts, see the log of its "
                "weight"
            ),
        ),
    ],
)
def test_an_engine_out_of_service_is_named(make_site, state, kind, words):
    site = make_site()
    site.engine("engine-1", 0, state, kind)
    assert words in site.said()


def test_an_outside_engine_that_the_run_follows_needs_no_other_agent(make_site):
    site = make_site()
    site.engine("vllm-a-1", 0, "dead", "vllm")
    rows = site.store.read(lambda conn: workers.engines_of(conn, site.run))
    engines = Engines(rows, 0, frozenset(), followed=frozenset({"vllm-a-1"}))
    said = "\n".join(site.store.read(lambda conn: hold_ups(conn, site.run, ("train",), engines)))
    assert (
        "vllm-a-1 at http://vllm-a-1 is out of service: it does not answer. Start the engine; logs/vllm-a-1.log"
        in said
    )
    assert "weights-agent" not in said


def test_of_several_policies_each_engine_lacks_a_version_and_waits_for_a_lease_of_its_own(make_site):
    site = make_site()
    other = site.do(lambda conn: policies.register(conn, site.run, "helper"))
    row = WorkerRow("engine-1", site.run, "embedded", "http://engine-1", 3, "ready", other)
    site.do(
        lambda conn: workers.upsert(
            conn, WorkerRow("engine-0", site.run, "embedded", "", 0, "ready", site.policy)
        )
    )
    site.do(lambda conn: workers.upsert(conn, row))
    site.lease("engine-0")
    rows = site.store.read(lambda conn: workers.engines_of(conn, site.run))
    engines = Engines(rows, 1, frozenset({"engine-0", "engine-1"}), {site.policy: 1, other: 5})
    said = "\n".join(site.store.read(lambda conn: hold_ups(conn, site.run, ("train",), engines)))
    assert "engine-1 serves version 3 and lacks version 5, though no update lease is held" in said
    assert "engine-0 serves version 0 and lacks version 1: it holds update lease" in said


def test_before_anything_is_there(make_site):
    site = make_site()
    with site.store as store:
        said = store.read(lambda conn: hold_ups(conn, site.run, ("train",), Engines((), -1, frozenset())))
        assert said[0].startswith("No version is published")
        assert said[1].startswith("No engine has registered")


def test_nothing_to_hold_up_is_a_nodes_turn(make_site):
    assert make_site().said() == (
        "Nothing runs, and every engine serves the newest version: a node is to submit groups. See "
        "logs/node*.log."
    )


def test_the_watch_says_it_all(make_site, tmp_path):
    site = make_site()
    site.group(0)
    watch = StallWatch(site.store, site.run, site.policy, Children(RunFolder(tmp_path), 1, 1), 60.0)
    assert watch.look("training") is None
    watch._told -= 61
    watch._next = 0.0
    said = watch.look("training")
    assert "  The trainer waits for group 0" in said
    assert "(slot 1, attempt 0) waits for a node" in said
