"""What one look at a run costs, on a small store and on large ones. `make bench NAME=look`.

Fills a store with rollouts of three calls each, most of them long ended, one attempt in ten failed and one group in ten
dropped, and the trainer's metrics with a line for every sixteen; and looks at it as `harnessgym train` does every second,
while sixteen rollouts run. Prints processor milliseconds, which other load on the machine does not lengthen, and the median
of the wall milliseconds.
"""

import argparse
import platform
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, insert

from harnessgym.metrics.lines import append
from harnessgym.run_config import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, policies, runs, tables, workers
from harnessgym.store.tables import new_id
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.progress import Observer

_ROOT = Path("benchmarks/out/look")
_CALLS = 3
_RUNNING = 16
_PER_S = 10.0
"""Rollouts that ended per second."""
_GROUP = 4
_BATCH = 16
_IN_TEN = 10
"""One in so many attempts fails, one in so many groups is dropped."""
_STAGES = {name: 0.1 for stage in ("prepare", "run", "reconstruct", "evaluate") for name in (stage, f"wait.{stage}")}


def main() -> None:
    """Fill, look, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[100, 10_000, 50_000])
    parser.add_argument("--looks", type=int, default=50)
    options = parser.parse_args()
    table = Table("rollouts", "calls", "first look", "look", "wall", title="one look at a run, ms", title_justify="left")
    out: list[dict[str, Any]] = []
    for number in options.rollouts:
        found = measure(number, options.looks)
        out.append({"rollouts": number, **found})
        table.add_row(f"{number:,}", f"{_CALLS * number:,}", *(f"{value:.1f}" for value in found.values()))
    Console().print(table)
    write_json(Path("benchmarks/out/look.json"), {"machine": platform.machine(), "looks": options.looks, "stores": out})
    shutil.rmtree(_ROOT, ignore_errors=True)


def measure(number: int, looks: int) -> dict[str, float]:
    """Milliseconds of the first look at a store of so many rollouts, and of those after it."""
    folder = filled(_ROOT / str(number), number)
    note_steps(folder, number)
    with TraceStore.open(folder.store_url()) as store:
        observer = Observer(folder, store)
        first, _ = _look(observer)
        later = [_look(observer) for _ in range(looks)]
    processor, wall = (statistics.median(values) for values in zip(*later, strict=True))
    return {"first_cpu_ms": first, "cpu_ms": processor, "wall_ms": wall}


def _look(observer: Observer) -> tuple[float, float]:
    """Processor and wall milliseconds of a look."""
    before, began = time.thread_time(), time.perf_counter()
    observer.look()
    return round(1000 * (time.thread_time() - before), 3), round(1000 * (time.perf_counter() - began), 3)


def filled(root: Path, number: int) -> RunFolder:
    """A run's folder whose store has that many rollouts, the last of which ended now."""
    shutil.rmtree(root, ignore_errors=True)
    folder = RunFolder(root)
    harness = {"name": "openai", "settings": {"argv": ["true"]}}
    raw = {"name": "look", "policy": {"path": str(root)}, "tasks": {"set": "lookup"}, "harnesses": [harness]}
    write_json(folder.config_path, RunConfig.model_validate(raw).model_dump(mode="json"))
    with TraceStore.create(folder.store_url()) as store:
        run_id = store.write(lambda conn: runs.add(conn, "look", {}, "0", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        store.write(lambda conn: workers.upsert(conn, WorkerRow("engine-0", run_id, "embedded", "", 1, "ready")))
        store.write(lambda conn: fill(conn, run_id, policy_id, number))
    return folder


def note_steps(folder: RunFolder, number: int) -> None:
    """What the trainer notes of the steps on so many rollouts."""
    usual, now = {"reward": 0.5, "staleness": 1, "wait_s": 0.6, "step_s": 1.0}, time.time()
    for step in range(1, number // _BATCH + 1):
        at = now - (number - _BATCH * step) / _PER_S
        append(folder.metrics_path, {"step": step, "time": at, **usual, "dropped_groups": step % 3})


def fill(conn: Connection, run_id: str, policy_id: str, number: int) -> None:
    """Rollouts that ended, `_PER_S` a second until now, with their calls and their place in the ledger; and some that run."""
    now, task = time.time(), new_id()
    conn.execute(insert(tables.tasks).values(id=task, set="s", key="k", split="train", payload_hash="h"))
    shared = {"run_id": run_id, "task_id": task, "policy_id": policy_id}
    rows: dict[Any, list[dict[str, Any]]] = {tables.groups: [], tables.rollouts: [], tables.sessions: []}
    rows |= {tables.segments: [], tables.calls: [], tables.trained: []}
    for index in range(number + _RUNNING):
        ended = None if index >= number else now - (number - index) / _PER_S
        began = now - 2.0 if ended is None else ended - 2.0
        if index % _GROUP == 0:
            group = _id(began)
            dropped = ended is not None and index // _GROUP % _IN_TEN == _IN_TEN - 1
            state = "open" if ended is None else "dropped" if dropped else "consumed"
            rows[tables.groups].append(_group(shared, group, index // _GROUP, state, began))
        rollout = _rollout(shared, group, index % _GROUP, began, ended)
        rows[tables.rollouts].append(rollout)
        _add_calls(rows, rollout["id"], began)
        if ended is not None and index % _IN_TEN == _IN_TEN - 1:
            failed = {"status": "failed", "verdict": "infrastructure_error", "cause": "sandbox_lost", "attempt": 1}
            rows[tables.rollouts].append({**rollout, **failed, "id": _id(began)})
        if ended is not None and not dropped:
            rows[tables.trained].append(_trained(policy_id, rollout["id"], index // _BATCH, ended))
    for table, values in rows.items():
        conn.execute(insert(table), values)


def _group(shared: dict[str, str], group: str, ordinal: int, state: str, at: float) -> dict[str, Any]:
    own = {"purpose": "train", "ordinal": ordinal, "size": _GROUP, "sampling": {}, "submitted_version": 0}
    return {**shared, **own, "id": group, "state": state, "created_at": at}


def _rollout(shared: dict[str, str], group: str, slot: int, began: float, ended: float | None) -> dict[str, Any]:
    own = {"id": _id(began), "group_id": group, "slot": slot, "attempt": 0, "harness": "openai", "sandbox": "process"}
    how = {"status": "running" if ended is None else "finished", "verdict": None if ended is None else "valid", "cause": None}
    when = {"created_at": began, "started_at": began, "ended_at": ended, "latencies": None if ended is None else _STAGES}
    return {**shared, **own, **how, **when, "seed": 0, "frozen": False}


def _add_calls(rows: dict[Any, list[dict[str, Any]]], rollout_id: str, began: float) -> None:
    session, segment = _id(began), _id(began)
    options = {"sampling": {}, "history": "keep", "limits": {}, "sealed": False, "options": {}}
    rows[tables.sessions].append({**options, "id": session, "rollout_id": rollout_id, "key_hash": session, "created_at": began})
    tokens = {"kind": "prompt", "hash": segment, "length": 1, "ids": b"\0\0"}
    rows[tables.segments].append({**tokens, "id": segment, "session_id": session, "created_at": began})
    for ordinal in range(_CALLS):
        about = {"parent_evidence": "none", "protocol": "chat", "kind": "policy", "status": "delivered", "history": "keep"}
        digests = {"request_digest": "d", "chain_digest": "d", "prompt_len": 1, "prompt_hash": "h", "prompt_segment": segment}
        sampled = {"completion_len": 12, "timings": {"total_s": 0.3}, "upstream": "engine-0"}
        at = began + 0.5 * ordinal
        own = {"id": _id(at), "session_id": session, "rollout_id": rollout_id, "ordinal": ordinal, "created_at": at}
        rows[tables.calls].append({**about, **digests, **sampled, **own, "sampling_asked": {}, "sampling_applied": {}})


def _trained(policy_id: str, rollout_id: str, step: int, at: float) -> dict[str, Any]:
    own = {"policy_id": policy_id, "rollout_id": rollout_id, "step": step, "version": step + 1, "tokens": 36}
    return {**own, "id": _id(at), "max_staleness": step % 3, "created_at": at}


def _id(at: float) -> str:
    """An id as if it had been made at a time."""
    return f"{int(at * 1_000_000):014x}{new_id()[14:]}"


if __name__ == "__main__":
    main()
