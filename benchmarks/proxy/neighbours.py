"""What other sessions wait beside one that is hostile."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.proxy.client import Load
from benchmarks.proxy.hostile import KINDS
from benchmarks.proxy.process import run_client
from benchmarks.proxy.targets import Engine, Ours

MOST = 2.0
"""Times that the others' slowest answers may take beside a hostile session."""
_MAX_LENGTH = 65_536


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The sessions of honest harnesses, alone and beside a hostile one."""

    kind: str
    alone_p50_ms: float
    alone_p99_ms: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    answers: dict[str, int] = field(default_factory=dict)
    """What the hostile session was answered: status to count."""

    @property
    def times(self) -> float:
        """p99 beside it as a multiple of p99 alone."""
        return self.p99_ms / self.alone_p99_ms

    def to_dict(self) -> dict[str, object]:
        """As JSON values."""
        return {**asdict(self), "times": round(self.times, 2)}


def neighbours(engine: Engine, folder: Path, kinds: Sequence[str], turns: int) -> list[Neighbour]:
    """Eight sessions of so many turns, alone and beside each kind of hostile session, each on a new proxy.

    Raises `RuntimeError` when an answer to one of them is wrong.
    """
    return [_beside(engine, folder, kind, turns) for kind in kinds]


def _beside(engine: Engine, folder: Path, kind: str, turns: int) -> Neighbour:
    ours = Ours(engine, folder, max_length=_MAX_LENGTH)
    try:
        _latencies(ours, 3)
        alone = _latencies(ours, turns)
        argv = [sys.executable, "-m", "benchmarks.proxy.hostile", kind]
        load = Load("127.0.0.1", ours.port, ours.open(1), 0, stream=False)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hostile:
            assert hostile.stdin is not None
            assert hostile.stdout is not None
            hostile.stdin.write(json.dumps(asdict(load)).encode() + b"\n")
            hostile.stdin.flush()
            hostile.stdout.readline()
            beside = _latencies(ours, turns)
            hostile.stdin.close()
            answers = json.loads(hostile.stdout.readline())
    finally:
        ours.stop()
    p50, p99 = (_at(beside, share) for share in (0.5, 0.99))
    return Neighbour(kind, _at(alone, 0.5), _at(alone, 0.99), p50, p99, _at(beside, 1.0), answers)


def _latencies(ours: Ours, turns: int) -> list[float]:
    result = run_client(Load("127.0.0.1", ours.port, ours.open(8), turns, stream=False))
    if result.wrong:
        raise RuntimeError(f"A session got a wrong answer beside a hostile one: {result.wrong[0]}")
    return sorted(result.latencies)


def _at(ordered: Sequence[float], share: float) -> float:
    if share == 0.5:
        return round(1e3 * statistics.median(ordered), 2)
    return round(1e3 * ordered[int(share * (len(ordered) - 1))], 2)


ALL = tuple(KINDS)
