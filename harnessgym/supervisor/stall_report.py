"""Lists the causes of a stall: what each process waits for, since when, and what to do about it.

Everything is read from the store, so it works the same on one machine and on a cluster. A rollout's stage is
derived from its session and its calls, because nodes record the times of stages only when it has ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from harnessgym.run_config.trainer import TrainerSection
from harnessgym.store import leases, wait_report
from harnessgym.store.wait_report import UpdateLease
from harnessgym.store.workers import EMBEDDED, GONE, WorkerRow

_ROLLOUTS = 6
"""Most rollouts that are listed."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a run and the versions that they serve."""

    rows: Sequence[WorkerRow]
    newest: int
    """Newest version, -1 if there is none; with several policies the lowest of their newest versions."""
    behind: frozenset[str]
    """Ids of engines that serve an older version than their policy's newest."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Newest version by policy, if there are several."""
    followed: frozenset[str] = frozenset()
    """Ids of outside engines whose weight agents are the run's own processes."""

    def newest_of(self, row: WorkerRow) -> int:
        """The newest version of an engine's policy."""
        return self.versions.get(row.policy_id or "", self.newest)

    def may_answer(self, row: WorkerRow, version: int) -> bool:
        """Whether an engine may answer a rollout submitted under a version of the first policy."""
        return row.state == "ready" and (bool(self.versions) or row.version >= version)


def hold_ups(conn: Connection, run_id: str, purposes: Sequence[str], engines: Engines) -> list[str]:
    """Sentences with causes before their effects. Empty if nothing waits."""
    sentences = list(_engines(conn, engines))
    sentences += _nodes(conn, run_id)
    sentences += _groups(conn, run_id, purposes, engines)
    return sentences


def _engines(conn: Connection, engines: Engines) -> Iterable[str]:
    """Which engines are out of service, which lag behind, and which hold an update lease."""
    if engines.newest < 0:
        yield (
            "No version is published: the trainer loads the starting weights or has failed. "
            "See logs/trainer.log."
        )
    if not engines.rows:
        yield "No engine has registered: the engines load the policy or have failed. See logs/engine-*.log."
    unchanged = wait_report.unchanged_s(conn)
    held = {each.resource: each for each in wait_report.update_leases(conn)}
    for row in engines.rows:
        own = {name: each for name, each in held.items() if name.startswith(f"update:{row.policy_id or ''}")}
        lease = next((name for name, each in own.items() if each.holder == row.id), None)
        yield from _engine(row, engines, unchanged.get(row.id, 0.0), own, lease)
    known = {row.id for row in engines.rows}
    for name, each in held.items():
        if each.holder not in known:
            yield (
                f"{each.holder} holds update lease {name} and is no engine of this run: it ends in "
                f"{each.left_s:.0f} s unless renewed. End that process if it goes on."
            )


def _engine(
    row: WorkerRow, engines: Engines, age_s: float, held: Mapping[str, UpdateLease], lease: str | None
) -> Iterable[str]:
    """Sentences about one engine."""
    log = (
        f"logs/{row.id}.log"
        if row.kind == EMBEDDED or row.id in engines.followed
        else "the log of its weight agent"
    )
    holds = (
        f", and holds update lease {lease}, which ends in {held[lease].left_s:.0f} s unless it is renewed"
        if lease
        else ""
    )
    if row.state == "silent":
        yield (
            f"{row.id} ({row.kind} at {row.address}) is silent{holds}: it accepts connections and does not "
            "answer. Calls go to other engines; see its own log, and start it again."
        )
    elif row.state in GONE and row.kind == EMBEDDED:
        yield f"{row.id} is out of service{holds}: it is started again by itself; if not, see {log}."
    elif row.state in GONE and row.id in engines.followed:
        yield (
            f"{row.id} at {row.address} is out of service{holds}: it does not answer. Start the engine; "
            f"{log} has more."
        )
    elif row.state in GONE:
        yield (
            f"{row.id} ({row.kind} at {row.address}) is out of service{holds}: it does not answer, or nobody "
            f"follows it. Start the engine, and `harnessgym weights-agent --worker_id {row.id}`, again."
        )
    elif row.state == "starting":
        yield (
            f"{row.id} has been starting for {age_s:.0f} s, and takes no calls before it has a version: "
            f"see {log}."
        )
    elif row.state in ("draining", "updating"):
        yield (
            f"{row.id} has been {row.state} for {age_s:.0f} s, from version {row.version} to "
            f"{engines.newest_of(row)}{holds}. If that lasts, see {log} and end its process: another one "
            "starts with the newest version."
        )
    elif row.id in engines.behind:
        yield _lagging(row, engines, held, lease, log)


def _lagging(
    row: WorkerRow, engines: Engines, held: Mapping[str, UpdateLease], lease: str | None, log: str
) -> str:
    """A sentence about an engine that serves an old version and is not being updated."""
    lacks = f"{row.id} serves version {row.version} and lacks version {engines.newest_of(row)}"
    if lease:
        return (
            f"{lacks}: it holds update lease {lease} and reads the version's files. If that lasts, see {log}."
        )
    if not held:
        return (
            f"{lacks}, though no update lease is held: its weight agent does not look. See {log}, and end "
            "its process."
        )
    others = ", ".join(
        f"{each.holder} (ends in {each.left_s:.0f} s unless renewed)" for each in held.values()
    )
    hint = "See the holder's log; engine.updates_at_once allows more at one time."
    return f"{lacks}: it waits for an update lease, held by {others}. {hint}"


def _nodes(conn: Connection, run_id: str) -> Iterable[str]:
    """Whether any node takes rollouts, and which nodes' leases have expired."""
    queue = wait_report.queue(conn, run_id)
    if not leases.nodes(conn, run_id):
        yield (
            f"No node takes rollouts, and {queue.pending} wait for one: it starts or has failed. See "
            "logs/node*.log; on a cluster, `harnessgym cluster nodes` says where nodes are."
        )
    elif queue.pending > queue.put_off:
        places = ", ".join(f"{holder} has {number}" for holder, number in sorted(queue.running.items()))
        yield (
            f"{queue.pending - queue.put_off} rollouts wait for a place at a node "
            f"({places or 'none has any'}). node.max_running allows more, as far as memory and disk do."
        )
    if queue.first_s is not None:
        yield (
            f"{queue.put_off} rollouts failed and are tried again, the first in {queue.first_s:.0f} s: "
            "see why in logs/node*.log."
        )
    for holder, (number, silent_s) in sorted(queue.silent.items()):
        yield (
            f"{holder} has said nothing for {silent_s:.0f} s longer than its lease, and has {number} "
            "rollouts: they run again as soon as another node looks. See its log."
        )


def _groups(conn: Connection, run_id: str, purposes: Sequence[str], engines: Engines) -> Iterable[str]:
    """The first open group, and the stage of each of its rollouts."""
    group = wait_report.open_group(conn, run_id, purposes)
    complete = wait_report.complete_groups(conn, run_id, purposes)
    if group is None:
        yield from _nothing_open(complete, purposes, engines)
        return
    # With `when_stale = "wait"` the trainer takes groups in order, so only those before the first open
    # group count towards a batch.
    wanted = {**TrainerSection().model_dump(), **wait_report.trainer_settings(conn, run_id)}
    ready = group.complete_before if wanted["when_stale"] == "wait" else complete
    if "train" in purposes and ready >= wanted["groups_per_step"]:
        yield (
            f"A whole batch is complete ({ready} groups, {wanted['groups_per_step']} are wanted): the "
            "trainer trains on it, or has failed to. See logs/trainer*.log."
        )
        return
    left = wait_report.unfinished(conn, group.id)
    waits = "The trainer waits" if "train" in purposes else "The evaluation waits"
    yield (
        f"{waits} for group {group.ordinal} (task {group.task_key}, submitted {group.age_s:.0f} s ago under "
        f"version {group.submitted_version}): {len(left)} of its {group.size} rollouts have not ended. "
        f"{complete} others are complete."
    )
    for row in left[:_ROLLOUTS]:
        where = (
            "waits for a node" if row.status == "pending" else _stage(row, group.submitted_version, engines)
        )
        yield f"  rollout {row.id} (slot {row.slot}, attempt {row.attempt}) {where}"


def _nothing_open(complete: int, purposes: Sequence[str], engines: Engines) -> Iterable[str]:
    """What must act next when no group is open."""
    if complete and "train" in purposes:
        yield (
            f"{complete} groups are complete and none is open: the trainer trains, or has failed to. See "
            "logs/trainer*.log."
        )
    elif engines.behind:
        names = ", ".join(sorted(engines.behind))
        yield (
            f"Nothing runs, and nothing is submitted before {names} serves the newest version: what "
            "started under an older one could get staler than trainer.max_staleness."
        )
    elif purposes and engines.newest >= 0:
        yield (
            "Nothing runs, and every engine serves the newest version: a node is to submit groups. See "
            "logs/node*.log."
        )


def _stage(row: wait_report.Unfinished, version: int, engines: Engines) -> str:
    """The stage of a running rollout, as far as its record shows."""
    at = f"at {row.holder}"
    if row.opened_s is None:
        age = f"{row.started_s or 0.0:.0f} s"
        return f"{at} has been prepared for {age}: it waits for memory or disk, or its sandbox is being made."
    if row.sealed:
        return f"{at} is over, and is read back or graded: see the grader's limits (node.evaluate_at_once)."
    if row.call is None:
        return (
            f"{at} was ready {row.opened_s:.0f} s ago and has not called: it waits for node.max_running, "
            "or starts."
        )
    ordinal, status, age_s = row.call
    age = f"{age_s:.0f} s"
    if status != "intent":
        return (
            f"{at} works by itself since its call {ordinal}, {age} ago: its tools run, until the task's "
            "limits end it."
        )
    able = [each.id for each in engines.rows if engines.may_answer(each, version)]
    whom = ", ".join(able) if able else f"an engine, and none is ready with version {version} or later"
    return f"{at} waits since {age} for the answer to its call {ordinal}: from {whom}."
