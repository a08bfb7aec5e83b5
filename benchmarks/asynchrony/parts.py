"""What is simulated. Each part yields rows: a name, and figures with intervals over seeds."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.asynchrony.seeds import Run, runs
from harnessgym.config import validate
from harnessgym.simulation.comparison import arm
from harnessgym.simulation.report import figures
from harnessgym.simulation.settings import SimulationConfig

Rows = Iterator[tuple[str, dict[str, Any]]]

ARMS = ("sync", "one-step", "periodic", "recycle", "over-launch", "eta-1", "eta-2", "eta-4", "eta-8")
WORKERS = (1, 3, 10, 30, 100, 300, 1_000)
_TAIL = "pareto:300:1.5:8192"
_WINDOW = 30
"""Steps that count. Batches that were sampled before them are trained in them: few of so many."""


def compared(seeds: int, *, quick: bool) -> Rows:
    """All arms on the load that a `SimulationConfig` has by default: lognormal tokens."""
    for name in ARMS:
        yield name, _figures(runs(arm(_base(8, quick), name), seeds))


def tail(seeds: int, *, quick: bool) -> Rows:
    """The same with tokens of a call from a Pareto tail of infinite variance, cut at 8,192."""
    for name in ("sync", "recycle", "over-launch", "eta-4", "eta-8"):
        yield name, _figures(runs(arm(_with(_base(8, quick), work={"tokens": _TAIL}), name), seeds))


def updates(seeds: int, *, quick: bool) -> Rows:
    """One worker after another, or all at once: η = 4, nothing else differs."""
    base = arm(_base(4, quick), "eta-4")
    for row, changes in (
        ("global pause", {"mode": "global"}),
        ("rolling, 1 of 8 at a time", {"at_once": 1}),
        ("rolling, 2 of 8 at a time", {"at_once": 2}),
        ("rolling, 4 of 8 at a time", {"at_once": 4}),
    ):
        yield row, _figures(runs(_with(base, updates=changes), seeds))


def switches(seeds: int, *, quick: bool) -> Rows:
    """DART's steps (arXiv 2509.23866) one at a time: what environments wait for, and how engines are
    updated.
    """
    base = arm(_base(4, quick), "eta-4")
    for row, sampling, mode in (
        ("batch-wise, global pause", "batch", "global"),
        ("task-wise, global pause", "task", "global"),
        ("rollout-wise, global pause", "rollout", "global"),
        ("rollout-wise, per-worker updates", "rollout", "rolling"),
    ):
        yield row, _figures(runs(_with(base, work={"sampling": sampling}, updates={"mode": mode}), seeds))


def stale(seeds: int, *, quick: bool) -> Rows:
    """η = 2: in order of submission, or whatever is complete, with what is too stale dropped or submitted
    again.
    """
    base = arm(_base(2, quick), "eta-2")
    for row, trainer in (
        ("wait", {"consumption": "wait"}),
        ("drop", {"consumption": "drop"}),
        ("requeue", {"consumption": "requeue"}),
        ("drop, 6 batches launched", {"consumption": "drop", "over_launch": 6}),
        ("requeue, 6 batches launched", {"consumption": "requeue", "over_launch": 6}),
    ):
        yield row, _figures(runs(_with(base, trainer=trainer), seeds))


def replays(seeds: int, *, quick: bool) -> Rows:
    """η = 4: groups that are trained again while they are within it. Throughput counts them whenever they
    are trained.
    """
    base = arm(_base(4, quick), "eta-4")
    for row, trainer in (
        ("each once", {}),
        ("once more, a quarter of a batch", {"reuse": 1, "reuse_share": 0.25}),
        ("once more, half of a batch", {"reuse": 1, "reuse_share": 0.5}),
        ("three times more, half of a batch", {"reuse": 3, "reuse_share": 0.5}),
    ):
        yield row, _figures(runs(_with(base, trainer=trainer), seeds))


def same_batch(seeds: int, *, quick: bool) -> Rows:
    """More workers, each with 32 environments, for the same batch of 256 rollouts."""
    for workers in WORKERS[: 4 if quick else None]:
        config = _with(_base(4, quick), engines={"workers": workers}, work=_places(32 * workers))
        for name in ("sync", "eta-4"):
            yield f"{name}, {workers} workers", _figures(runs(arm(config, name), min(seeds, 3)))


def larger_batch(seeds: int, *, quick: bool) -> Rows:
    """More workers, each with 16 environments, and as many more rollouts in a batch: 16 a worker. 1,000:
    240,000 rollouts.
    """
    for workers in WORKERS[: 4 if quick else None]:
        steps = (
            {"steps": 10, "warmup": 4}
            if quick
            else {"steps": 15 if workers > 100 else 40, "warmup": _warmup(4)}
        )
        trainer = {"groups_per_step": 2 * workers, **steps}
        config = _with(
            SimulationConfig(), engines={"workers": workers}, work=_places(16 * workers), trainer=trainer
        )
        yield (
            f"eta-4, {workers} workers",
            _figures(runs(arm(config, "eta-4"), 1 if workers == WORKERS[-1] else min(seeds, 3))),
        )


def unlucky(seeds: int, *, quick: bool) -> Rows:
    """η = 4 while workers and the trainer are killed, checkpoints are lost and rollouts fail: what must
    hold all the same.
    """
    failures = {"worker_s": 60, "trainer_s": 400, "versions_lost": 1, "rollout": 0.05}
    config = _with(arm(_base(4, quick), "eta-4"), failures=failures)
    yield "eta-4, kills", _figures(runs(config, seeds))


PARTS: dict[str, Callable[..., Rows]] = {
    "arms": compared,
    "tail": tail,
    "updates": updates,
    "switches": switches,
    "stale": stale,
    "replays": replays,
    "same_batch": same_batch,
    "larger_batch": larger_batch,
    "unlucky": unlucky,
}


def _figures(found: list[Run]) -> dict[str, Any]:
    """What a table shows, what the processor did for it, and how many tokens the books do not explain."""
    trained = sum(run.outcome.counts["rollouts trained"] for run in found)
    sums = {
        "cpu_s": sum(run.cpu_s for run in found),
        "rollouts": trained,
        "unaccounted": sum(run.unaccounted for run in found),
    }
    return figures([run.outcome for run in found]) | sums


def _warmup(eta: int) -> int:
    """Steps until what is in flight no longer tells of the start, when η + 1 batches are begun at once:
    twice as many.
    """
    return max(8, 2 * (eta + 1))


def _base(eta: int, quick: bool) -> SimulationConfig:
    """The load, for arms with a staleness of up to `eta`."""
    steps = {"steps": 12, "warmup": 4} if quick else {"steps": _warmup(eta) + _WINDOW, "warmup": _warmup(eta)}
    return _with(SimulationConfig(), trainer=steps)


def _places(environments: int) -> dict[str, int]:
    return {"environments": environments, "graders": max(4, environments // 4)}


def _with(config: SimulationConfig, **sections: dict[str, Any]) -> SimulationConfig:
    raw = config.model_dump()
    for section, values in sections.items():
        raw[section] |= values
    return validate(SimulationConfig, raw, "the benchmark")
