"""What is measured, each on an empty database of its own."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert

from benchmarks.store.conversations import READ, SAMPLED, begin
from benchmarks.store.writer import NAIVE, naive_row, write_one
from harnessgym.store import TraceStore, calls, listing, new_id, policies, rollouts, runs, sessions
from harnessgym.store.backend import open_backend
from harnessgym.store.listing import RolloutFilter
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import rewards
from harnessgym.store.tables import rollouts as rollout_rows
from harnessgym.task import Task
from harnessgym.tokens import TokenArray
from harnessgym.traces.forest import Forest
from harnessgym.traces.trajectories import rows_of

NewDatabase = Callable[[], str]
_ROUNDS = 3


def committed(new: NewDatabase, processes: int, tasks: int, turns: int, way: str) -> dict[str, float]:
    """Committed calls a second, and bytes that each token takes: the best of some rounds."""
    found = [_committed_once(new(), processes, tasks, turns, way) for _ in range(_ROUNDS)]
    return max(found, key=lambda figures: figures["calls_per_s"])


def long_session(new: NewDatabase, turns: int) -> dict[str, float]:
    """Bytes a token of one session of so many turns, and what naive rows of it would be."""
    url = new()
    naive = 0
    with _prepared(url) as store:
        empty = size(url)
        (conversation,) = begin(store, 1)
        write_one(store, conversation, turns)
        (conversation,) = begin(store, 1)
        for _ in range(turns):
            naive += len(naive_row(conversation.turn())["row"])
    tokens = turns * (READ + SAMPLED)
    return {"bytes_per_token": (size(url) - empty) / tokens, "naive_bytes_per_token": naive / tokens}


def one_forest(new: NewDatabase, turns: int, tokens: int) -> dict[str, float]:
    """Seconds to build the forest of a long rollout, and its training rows, from the store."""
    with _prepared(new()) as store:
        rollout_id, group_id = _rollouts(store, 1, turns, tokens // turns)[0]
        session_ids = store.read(lambda conn: sessions.of_rollout(conn, rollout_id))
        began = time.perf_counter()
        segments, recorded = store.read(
            lambda conn: (calls.segments_of(conn, session_ids), calls.of_sessions(conn, session_ids))
        )
        forest = Forest.load(session_ids[0], segments.values(), recorded)
        forest_s = time.perf_counter() - began
        assert len(forest.leaves()) == 1
        began = time.perf_counter()
        trajectory = store.read(partial(rows_of, rollout_id=rollout_id, group_id=group_id))
        rows_s = time.perf_counter() - began
        assert len(trajectory.rows[0].ids) == tokens
    return {"forest_s": forest_s, "rows_s": rows_s}


def many_forests(new: NewDatabase, count: int, turns: int) -> dict[str, float]:
    """Tokens a second that many rollouts' forests are read with, and their training rows."""
    with _prepared(new()) as store:
        made = _rollouts(store, count, turns, READ + SAMPLED)
        tokens = count * turns * (READ + SAMPLED)
        began = time.perf_counter()
        for rollout_id, _ in made:
            store.read(partial(_forest, rollout_id=rollout_id))
        forests = tokens / (time.perf_counter() - began)
        began = time.perf_counter()
        for rollout_id, group_id in made:
            store.read(partial(rows_of, rollout_id=rollout_id, group_id=group_id))
        rows = tokens / (time.perf_counter() - began)
    return {"forest_tokens_per_s": forests, "rows_tokens_per_s": rows}


def listed(new: NewDatabase, count: int) -> dict[str, float]:
    """The slowest of several filtered listings over so many rollouts, in milliseconds."""
    with _prepared(new()) as store:
        made = _rollouts(store, count, 3, 4)
        chosen = random.Random(0)
        rows = [_reward(rollout_id, chosen.random()) for rollout_id, _ in made]
        store.write(lambda conn: conn.execute(insert(rewards), rows))
        store.write(
            lambda conn: conn.execute(rollout_rows.update().values(verdict="valid", status="finished"))
        )
        filters = {
            "no filter": RolloutFilter(),
            "harness, status, verdict": RolloutFilter(harness="h1", status="finished", verdict="valid"),
            "task, reward at least 0.9": RolloutFilter(task="t", min_reward=0.9),
            "nothing matches": RolloutFilter(stop_reason="none such", max_reward=0.5),
        }
        times = {}
        for name, wanted in filters.items():
            began = time.perf_counter()
            store.read(partial(listing.newest_rollouts, limit=50, wanted=wanted))
            times[name] = 1e3 * (time.perf_counter() - began)
        began = time.perf_counter()
        assert len(store.read(partial(listing.newest_rollouts, limit=-1))) == count
        times["all of them"] = 1e3 * (time.perf_counter() - began)
    return times


def size(url: str) -> int:
    """Bytes that a database takes once its log is written back."""
    backend = open_backend(url)
    engine = backend.engine()
    with engine.connect() as conn:
        if conn.dialect.name == "postgresql":
            conn.exec_driver_sql("CHECKPOINT")
        found = backend.size(conn)
    engine.dispose()
    return found


def _committed_once(url: str, processes: int, tasks: int, turns: int, way: str) -> dict[str, float]:
    with _prepared(url):
        pass
    empty = size(url)
    command = [sys.executable, "-m", "benchmarks.store.writer", url, str(tasks), str(turns)]
    writers = [
        subprocess.Popen([*command, str(seed), way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in range(processes)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [json.loads(writer.communicate()[0]) for writer in writers]
    seconds = max(figures["seconds"] for figures in said) if processes == 1 else time.perf_counter() - began
    done, tokens = sum(figures["calls"] for figures in said), sum(figures["tokens"] for figures in said)
    return {
        "calls_per_s": done / seconds,
        "cpu_us_per_call": 1e6 * sum(figures["cpu_s"] for figures in said) / done,
        "bytes_per_token": (size(url) - empty) / tokens,
    }


def _prepared(url: str) -> TraceStore:
    store = TraceStore.create(url)
    store.write(lambda conn: NAIVE.create(conn, checkfirst=True))
    return store


def _rollouts(store: TraceStore, count: int, turns: int, tokens: int) -> list[tuple[str, str]]:
    """Rollouts of one agent without bodies, each call adding so many tokens, a third of them sampled.
    (rollout, group) ids.
    """
    from tests.support.stored_rollouts import write_rollout

    def prepare(conn: Connection) -> list[tuple[str, str]]:
        run = runs.add(conn, "bench", {}, "bench", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        names = tuple(f"h{slot % 3}" for slot in range(count))
        rollouts.submit(
            conn, GroupSpec(run, task, policy, "train", 0, 0, {}, names, "process", tuple(range(count)))
        )
        return [(row.id, row.group_id) for row in rollouts.claim(conn, run, "bench", 3600.0, count)]

    made = store.write(prepare)
    draw = random.Random(0)
    sampled = max(1, tokens // 3)
    ids = TokenArray(draw.choices(range(150_000), k=tokens))
    logprobs = [-0.5 * number for number in draw.choices(range(20), k=sampled)]
    waiting = [
        store.submit(partial(write_rollout, rollout_id=rollout_id, turns=turns, ids=ids, logprobs=logprobs))
        for rollout_id, _ in made
    ]
    for future in waiting:
        future.result()
    return made


def _forest(conn: Connection, rollout_id: str) -> Forest:
    session_ids = sessions.of_rollout(conn, rollout_id)
    return Forest.load(
        session_ids[0], calls.segments_of(conn, session_ids).values(), calls.of_sessions(conn, session_ids)
    )


def _reward(rollout_id: str, value: float) -> dict[str, Any]:
    return {"id": new_id(), "rollout_id": rollout_id, "unit": "rollout", "target": rollout_id, "channel": "reward",
            "value": value, "source": "bench"}  # fmt: skip
