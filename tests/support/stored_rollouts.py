"""Rollouts that no harness ran, written into a store: one in full, or as many as a large store holds."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, calls, new_id, policies, runs, sessions, tables, workers
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.store.workers import WorkerRow
from harnessgym.tokens import TokenArray, VersionSpan, hash_ids

BATCH = 16
"""Rollouts per training step in a filled store."""
CALLS = 3
"""Calls of each of its rollouts."""
ENDED_PER_S = 10.0
"""How many of its rollouts ended per second."""
_RUNNING = 16
_GROUP = 4
_IN_TEN = 10
"""One in so many attempts fails, one in so many groups is dropped."""
_STAGES = {
    name: 0.1 for stage in ("prepare", "run", "reconstruct", "evaluate") for name in (stage, f"wait.{stage}")
}


def write_rollout(
    conn: Connection, rollout_id: str, turns: int, ids: TokenArray, logprobs: Sequence[float]
) -> None:
    """Write one session. Each of its calls adds `ids`, the last `len(logprobs)` of which are sampled."""
    session_id = sessions.add(conn, rollout_id, new_id(), sampling={}).id
    sampled, parent, last, length = len(logprobs), None, None, 0
    read, answer = ids[:-sampled], ids[-sampled:]
    for ordinal in range(turns):
        prompt = Segment(new_id(), session_id, "prompt", parent, read)
        completion = Segment(new_id(), session_id, "completion", prompt.id, answer, logprobs)
        call_id, length = new_id(), length + len(read)
        intent = CallIntent(
            call_id, session_id, rollout_id, ordinal, "chat", "policy", "keep", call_id, call_id, length, hash_ids(read),
            prompt.id, "engine-0", sampling_applied={"temperature": 1.0}, parent_call_id=last,
            parent_evidence="none" if last is None else "token_prefix",
        )  # fmt: skip
        calls.intend(conn, intent, prompt)
        usage = {"prompt_tokens": length, "completion_tokens": sampled}
        spans = (VersionSpan(0, sampled, 0),)
        calls.finish(
            conn,
            CallOutcome(call_id, completion, spans, call_id, "stop", 2, "engine-0", usage, {"total_s": 0.1}),
        )
        parent, last, length = completion.id, call_id, length + sampled


def filled(root: Path, number: int) -> RunFolder:
    """Write a run's folder whose store has that many rollouts, the last of which ended now."""
    shutil.rmtree(root, ignore_errors=True)
    folder = RunFolder(root)
    harness = {"name": "openai", "settings": {"argv": ["true"]}}
    raw = {"name": "look", "policy": {"path": str(root)}, "tasks": {"set": "lookup"}, "harnesses": [harness]}
    write_json(folder.config_path, RunConfig.model_validate(raw).model_dump(mode="json"))
    with TraceStore.create(folder.store_url()) as store:
        run_id = store.write(lambda conn: runs.add(conn, "look", {}, "0", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        store.write(
            lambda conn: workers.upsert(conn, WorkerRow("engine-0", run_id, "embedded", "", 1, "ready"))
        )
        store.write(lambda conn: fill(conn, run_id, policy_id, number))
    return folder


def fill(conn: Connection, run_id: str, policy_id: str, number: int) -> None:
    """Add rollouts that ended, `ENDED_PER_S` a second until now, with calls and ledger entries; and some
    that run.
    """
    now, task = time.time(), new_id()
    conn.execute(insert(tables.tasks).values(id=task, set="s", key="k", split="train", payload_hash="h"))
    shared = {"run_id": run_id, "task_id": task, "policy_id": policy_id}
    rows: dict[Any, list[dict[str, Any]]] = {tables.groups: [], tables.rollouts: [], tables.sessions: []}
    rows |= {tables.segments: [], tables.calls: [], tables.trained: []}
    for index in range(number + _RUNNING):
        ended = None if index >= number else now - (number - index) / ENDED_PER_S
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
            failed = {
                "status": "failed",
                "verdict": "infrastructure_error",
                "cause": "sandbox_lost",
                "attempt": 1,
            }
            rows[tables.rollouts].append({**rollout, **failed, "id": _id(began)})
        if ended is not None and not dropped:
            rows[tables.trained].append(_trained(policy_id, rollout["id"], index // BATCH, ended))
    for table, values in rows.items():
        conn.execute(insert(table), values)


def _group(shared: dict[str, str], group: str, ordinal: int, state: str, at: float) -> dict[str, Any]:
    own = {"purpose": "train", "ordinal": ordinal, "size": _GROUP, "sampling": {}, "submitted_version": 0}
    return {**shared, **own, "id": group, "state": state, "created_at": at}


def _rollout(
    shared: dict[str, str], group: str, slot: int, began: float, ended: float | None
) -> dict[str, Any]:
    own = {
        "id": _id(began),
        "group_id": group,
        "slot": slot,
        "attempt": 0,
        "harness": "openai",
        "sandbox": "process",
    }
    how = {
        "status": "running" if ended is None else "finished",
        "verdict": None if ended is None else "valid",
        "cause": None,
    }
    when = {
        "created_at": began,
        "started_at": began,
        "ended_at": ended,
        "latencies": None if ended is None else _STAGES,
    }
    return {**shared, **own, **how, **when, "seed": 0, "frozen": False}


def _add_calls(rows: dict[Any, list[dict[str, Any]]], rollout_id: str, began: float) -> None:
    session, segment = _id(began), _id(began)
    options = {"sampling": {}, "history": "keep", "limits": {}, "sealed": False, "options": {}}
    rows[tables.sessions].append(
        {**options, "id": session, "rollout_id": rollout_id, "key_hash": session, "created_at": began}
    )
    tokens = {"kind": "prompt", "hash": segment, "length": 1, "ids": b"\0\0"}
    rows[tables.segments].append({**tokens, "id": segment, "session_id": session, "created_at": began})
    for ordinal in range(CALLS):
        about = {
            "parent_evidence": "none",
            "protocol": "chat",
            "kind": "policy",
            "status": "delivered",
            "history": "keep",
        }
        digests = {
            "request_digest": "d",
            "chain_digest": "d",
            "prompt_len": 1,
            "prompt_hash": "h",
            "prompt_segment": segment,
        }
        sampled = {"completion_len": 12, "timings": {"total_s": 0.3}, "upstream": "engine-0"}
        at = began + 0.5 * ordinal
        own = {
            "id": _id(at),
            "session_id": session,
            "rollout_id": rollout_id,
            "ordinal": ordinal,
            "created_at": at,
        }
        rows[tables.calls].append(
            {**about, **digests, **sampled, **own, "sampling_asked": {}, "sampling_applied": {}}
        )


def _trained(policy_id: str, rollout_id: str, step: int, at: float) -> dict[str, Any]:
    own = {"policy_id": policy_id, "rollout_id": rollout_id, "step": step, "version": step + 1, "tokens": 36}
    return {**own, "id": _id(at), "max_staleness": step % 3, "created_at": at}


def _id(at: float) -> str:
    """An id as if it had been made at a time."""
    return f"{int(at * 1_000_000):014x}{new_id()[14:]}"
