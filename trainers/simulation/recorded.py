"""Draws from what a run of this machine or a cluster has recorded."""

import json
from collections.abc import Iterable
from pathlib import Path

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, runs
from harnessgym.store.durations import rollout_durations
from trainers.simulation.distributions import Distribution
from trainers.simulation.settings import SimulationConfig


def with_recorded(config: SimulationConfig, root: Path) -> SimulationConfig:
    """A configuration whose work is drawn from a run folder: turns, tokens, environments, graders, and training steps if any.

    Each quantity is drawn by itself, so that what goes together in a rollout (long answers, many turns) does not in the
    simulation. Raises `ConfigError` for a folder that has no finished rollouts.
    """
    path = root / "traces.db"
    if not path.exists():
        raise ConfigError(f"{root} has no recorded run: there is no {path}. Give the folder of a `train` or `rollout` run.")
    with TraceStore.open(f"sqlite:///{path}") as store:
        run = store.read(runs.only)
        found = [] if run is None else store.read(lambda conn: rollout_durations(conn, run.id))
    if not found:
        raise ConfigError(f"{path} has no finished rollout with model calls to draw from.")
    work = {
        "turns": _recorded(float(len(each.tokens)) for each in found),
        "tokens": _recorded(float(number) for each in found for number in each.tokens),
        "read": _recorded(float(number) for each in found for number in each.read),
        "environment_s": _recorded(seconds for each in found for seconds in each.between_s),
        "grading_s": _recorded(each.grading_s for each in found),
    }
    trainer = {"step_s": _recorded(_steps(root))}
    raw = config.model_dump()
    for section, values in (("work", work), ("trainer", trainer)):
        raw[section] |= {name: value for name, value in values.items() if value is not None}
    return validate(SimulationConfig, raw, f"what {root} recorded")


def _steps(root: Path) -> list[float]:
    """Seconds of the training steps."""
    path = RunFolder(root).metrics_path
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [float(line["step_s"]) for line in lines if "step_s" in line]


def _recorded(values: Iterable[float]) -> Distribution | None:
    found = tuple(values)
    return Distribution(kind="recorded", mean=sum(found) / len(found), values=found) if found else None
