"""Draws from what a run of this machine or a cluster has recorded."""

from collections.abc import Iterable
from pathlib import Path

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.metrics.lines import StepLines
from harnessgym.run_folder import RunFolder
from harnessgym.simulation.distributions import Distribution
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.store import TraceStore, runs
from harnessgym.store.backend import shown
from harnessgym.store.durations import rollout_durations


def with_recorded(config: SimulationConfig, root: Path) -> SimulationConfig:
    """A configuration whose work is drawn from a run folder: turns, tokens, environments, graders, and
    training steps if any.

    Each quantity is drawn by itself, so that what goes together in a rollout (long answers, many turns) does
    not in the simulation. Raises `ConfigError` for a folder that has no finished rollouts.
    """
    folder = RunFolder(root)
    path = root / "traces.db"
    if not folder.config_path.exists() and not path.exists():
        raise ConfigError(
            f"{root} has no recorded run: there is no {path}. Give the folder of a `train` or `rollout` run."
        )
    url = folder.store_url() if folder.config_path.exists() else f"sqlite:///{path}"
    with TraceStore.open(url) as store:
        run = store.read(runs.only)
        found = [] if run is None else store.read(lambda conn: rollout_durations(conn, run.id))
    if not found:
        raise ConfigError(f"{shown(url)} has no finished rollout with model calls to draw from.")
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
    return [line["step_s"] for line in StepLines(RunFolder(root).metrics_path).read() if "step_s" in line]


def _recorded(values: Iterable[float]) -> Distribution | None:
    found = tuple(values)
    return Distribution(kind="recorded", mean=sum(found) / len(found), values=found) if found else None
