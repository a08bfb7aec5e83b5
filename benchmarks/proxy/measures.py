"""One measurement each: a load on a target, a long session, many paced streams, what is in the store
afterwards.
"""

import itertools
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from benchmarks.proxy.answers import LONG, scripts
from benchmarks.proxy.client import Load, Result, Shape
from benchmarks.proxy.process import run_client
from benchmarks.proxy.targets import Engine, Ours, Target
from harnessgym.store import TraceStore
from harnessgym.store.tables import calls, segments
from harnessgym.tokens import widen_ids
from harnessgym.traces.verification.verify import verify

_BUCKETS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One load on one target."""

    target: str
    stream: bool
    shape: Shape
    sessions: int
    turns: int
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_turn: float
    """Processor time of the target's processes."""
    engine_cpu_ms_per_turn: float
    client_cpu_ms_per_turn: float
    rss_before_mb: float
    rss_after_mb: float
    wrong: int


def load_row(
    target: Target, engine: Engine, *, sessions: int, turns: int, stream: bool, shape: Shape = "short"
) -> Row:
    """A load, with processor time and memory around it. Raises `RuntimeError` when an answer is wrong."""
    load = Load(
        "127.0.0.1", target.port, target.open(1), 3, stream, shape, target.key, policy=str(engine.policy)
    )
    run_client(load)
    paths, rss = target.open(sessions), target.child.rss_mb()
    cpu, engine_cpu = target.child.cpu_s(), engine.child.cpu_s()
    result = run_client(replace(load, paths=paths, turns=turns))
    cpu, engine_cpu = target.child.cpu_s() - cpu, engine.child.cpu_s() - engine_cpu
    if result.wrong:
        raise RuntimeError(
            f"{target.name} gave {len(result.wrong)} wrong answers, the first: {result.wrong[0]}"
        )
    done, latencies = len(result.latencies), sorted(result.latencies)
    return Row(
        target=target.name,
        stream=stream,
        shape=shape,
        sessions=sessions,
        turns=done,
        turns_per_s=round(done / result.wall_s, 1),
        p50_ms=_ms(statistics.median(latencies)),
        p99_ms=_ms(latencies[int(0.99 * (done - 1))]),
        cpu_ms_per_turn=_ms(cpu / done),
        engine_cpu_ms_per_turn=_ms(engine_cpu / done),
        client_cpu_ms_per_turn=_ms(result.cpu_s / done),
        rss_before_mb=round(rss, 1),
        rss_after_mb=round(target.child.rss_mb(), 1),
        wrong=len(result.wrong),
    )


def curve(target: Target, turns: int) -> list[dict[str, float]]:
    """One session of many turns, in buckets: per-turn time beside the body's size and what it takes merely
    to parse it.
    """
    cpu = target.child.cpu_s()
    result = run_client(Load("127.0.0.1", target.port, target.open(1), turns, stream=False, curve=True))
    if result.wrong:
        raise RuntimeError(f"The long session got a wrong answer: {result.wrong[0]}")
    size, out = max(1, turns // _BUCKETS), []
    for start in range(0, turns, size):
        part = slice(start, start + size)
        row = {
            "from_turn": start,
            "turn_ms": _ms(statistics.median(result.latencies[part])),
            "body_kb": round(statistics.mean(result.bodies[part]) / 1e3, 1),
            "json_parse_ms": _ms(statistics.median(result.parses[part])),
        }
        out.append(row)
    out[-1]["cpu_ms_per_turn_of_all"] = _ms((target.child.cpu_s() - cpu) / turns)
    return out


def token_curve(engine: Engine, prompts: list[int]) -> list[dict[str, float]]:
    """What it takes to give the engine such prompts as token ids and to get its answers: no proxy does
    with less.
    """
    result = run_client(
        Load(
            "127.0.0.1", engine.port, ("/v1/completions",), len(prompts), stream=True, prompts=tuple(prompts)
        )
    )
    size = max(1, len(prompts) // _BUCKETS)
    return [
        {
            "from_turn": start,
            "tokens": round(statistics.mean(prompts[start : start + size])),
            "turn_ms": _ms(statistics.median(result.latencies[start : start + size])),
        }
        for start in range(0, len(prompts), size)
    ]


def prompt_lengths(ours: Ours) -> list[int]:
    """Prompt tokens of every turn of the longest session."""
    with TraceStore.open(ours.store_url) as store:
        rows = store.read(
            lambda conn: conn.execute(
                select(calls.c.session_id, calls.c.prompt_len).order_by(calls.c.ordinal)
            ).all()
        )
    sessions: dict[str, list[int]] = {}
    for session, length in rows:
        sessions.setdefault(session, []).append(length)
    return max(sessions.values(), key=len)


def streams(target: Target, number: int, rate: float) -> dict[str, Any]:
    """Many paced streams at once: how late every token arrived, against the pace that the stream's most
    punctual token sets.
    """
    cpu = target.child.cpu_s()
    result = run_client(Load("127.0.0.1", target.port, target.open(number), 1, stream=True, paced=True))
    if result.wrong:
        raise RuntimeError(
            f"{target.name} gave {len(result.wrong)} wrong streams, the first: {result.wrong[0]}"
        )
    late = sorted(itertools.chain.from_iterable(_lateness(arrivals, rate) for arrivals in result.arrivals))
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {
        "target": target.name,
        "streams": len(result.arrivals),
        "tokens_each": LONG,
        "tokens_arrived_in_order": len(late),
        "wall_s": round(result.wall_s, 1),
        "events_per_s": round(sum(len(arrivals) // 2 for arrivals in result.arrivals) / result.wall_s),
        "lateness_ms": {name: _ms(late[int(share * (len(late) - 1))]) for name, share in shares.items()},
        "cpu_share": round((target.child.cpu_s() - cpu) / result.wall_s, 2),
    }


def _lateness(arrivals: list[float], rate: float) -> list[float]:
    """Seconds per token; the text is that of the script, so characters tell tokens."""
    (script,) = scripts(LONG, 1)
    ends = list(itertools.accumulate(len(piece) for piece in script.pieces[:-1]))
    times, token = [], 0
    for when, characters in zip(arrivals[::2], arrivals[1::2], strict=True):
        while token < len(ends) and ends[token] <= characters:
            times.append(when)
            token += 1
    due = [when - index / rate for index, when in enumerate(times)]
    punctual = min(due)
    return [when - punctual for when in due]


def stored(ours: Ours) -> dict[str, Any]:
    """What the store has of everything the proxy served; call it when the sessions are sealed."""
    with TraceStore.open(ours.store_url) as store:
        report = verify(store)
        counts = store.read(_counts)
    findings = [str(finding) for finding in report.findings]
    if findings:
        raise RuntimeError(f"The store has {len(findings)} findings, the first: {findings[0]}")
    size = Path(ours.store_url.removeprefix("sqlite:///")).stat().st_size
    return {**counts, "findings_of_verify": len(findings), "store_mb": round(size / 1e6, 1)}


def _counts(conn: Connection) -> dict[str, Any]:
    statuses: dict[str, int] = {}
    for status in conn.execute(select(calls.c.status)).scalars():
        statuses[status] = statuses.get(status, 0) + 1
    known = {script.ids for script in (*scripts(), *scripts(LONG, 1))}
    blobs = conn.execute(select(segments.c.ids, segments.c.length).where(segments.c.kind == "completion"))
    foreign = tokens = 0
    for blob, length in blobs:
        ids = tuple(widen_ids(blob, length).tolist())
        tokens += len(ids)
        foreign += ids not in known
    return {
        "calls": sum(statuses.values()),
        "statuses": statuses,
        "tokens": tokens,
        "completions_not_as_the_engine_gave": foreign,
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


__all__ = ["Result", "Row", "curve", "load_row", "prompt_lengths", "stored", "streams", "token_curve"]
