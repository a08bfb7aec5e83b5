"""Compares ways to train, which are changes to one configuration, on the same draws.

- `sync`: η = 0. A batch is sampled completely, then trained, then every engine gets the new version.
- `one-step`: η = 1 with a barrier. Batch k+1 is sampled while batch k is trained (verl, slime `train_async`).
- `eta-N`: η = N. Admission as in AReaL (arXiv 2505.24298), batches in order of submission, rolling updates.
- `periodic`: strictly on-policy. Versions change between batches; the trainer works on parts of a batch as
  they complete (Periodic Asynchrony).
- `recycle`: two batches are launched and sampling stops when one is complete. Unfinished rollouts continue
  first after the update, across versions (APRIL).
- `over-launch`: the same at η = 4 with `trainer.over_launch`. The trainer has its own machines, so engines do
  not stop.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from harnessgym.config import nearest, validate
from harnessgym.errors import ConfigError
from harnessgym.metrics.lines import StepLines
from harnessgym.run_config.trainer import PERIODIC
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.simulation import report
from harnessgym.simulation.distributions import Distribution
from harnessgym.simulation.outcome import SimulationOutcome
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.simulation import simulate
from harnessgym.store import TraceStore
from harnessgym.store.backend import shown, url_of_file
from harnessgym.store.durations import rollout_durations


def with_recorded(config: SimulationConfig, root: Path) -> SimulationConfig:
    """A configuration whose turns, tokens, environments, graders and steps are drawn from a recorded run.

    Each quantity is drawn independently, so correlations within a rollout (long answers, many turns) are
    lost. Raises `ConfigError` for a folder without finished rollouts.
    """
    folder = RunFolder(root)
    path = root / "traces.db"
    if not folder.config_path.exists() and not path.exists():
        raise ConfigError(
            f"{root} has no recorded run: there is no {path}. Give the folder of a `train` or `rollout` run."
        )
    url = folder.store_url() if folder.config_path.exists() else url_of_file(path)
    with TraceStore.open(url) as store:
        run = store.read(partial(run_of, folder=folder))
        durations = [] if run is None else store.read(lambda conn: rollout_durations(conn, run.id))
    if not durations:
        raise ConfigError(f"{shown(url)} has no finished rollout with model calls to draw from.")
    work = {
        "turns": _recorded(float(len(each.tokens)) for each in durations),
        "tokens": _recorded(float(number) for each in durations for number in each.tokens),
        "read": _recorded(float(number) for each in durations for number in each.read),
        "environment_s": _recorded(seconds for each in durations for seconds in each.between_s),
        "grading_s": _recorded(each.grading_s for each in durations),
    }
    trainer = {"step_s": _recorded(_steps(root))}
    raw = config.model_dump()
    for section, values in (("work", work), ("trainer", trainer)):
        raw[section] |= {name: value for name, value in values.items() if value is not None}
    return validate(SimulationConfig, raw, f"what {root} recorded")


def _steps(root: Path) -> list[float]:
    """Seconds of each recorded training step."""
    return [line["step_s"] for line in StepLines(RunFolder(root).metrics_path).read() if "step_s" in line]


def _recorded(values: Iterable[float]) -> Distribution | None:
    numbers = tuple(values)
    return (
        Distribution(kind="recorded", mean=sum(numbers) / len(numbers), values=numbers) if numbers else None
    )


DEFAULT_ARMS = ("sync", "one-step", "eta-1", "eta-4", "periodic", "recycle")


@dataclass(frozen=True, slots=True)
class VariantComparison:
    """The outcomes of all variants."""

    config: SimulationConfig
    outcomes: dict[str, list[SimulationOutcome]]
    """By variant, one outcome per seed."""

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        rows = {name: report.figures(outcomes) for name, outcomes in self.outcomes.items()}
        single = {
            name: [outcome.to_dict() for outcome in outcomes] for name, outcomes in self.outcomes.items()
        }
        return {
            "simulated": True,
            "config": self.config.model_dump(mode="json"),
            "arms": rows,
            "seeds": single,
        }

    def tables(self) -> list[Table]:
        """The comparison as tables."""
        return report.tables(self.outcomes)


def compare(
    config: SimulationConfig,
    chosen: Sequence[str],
    seeds: int,
    observe: Callable[[str, int], None] = lambda _arm, _step: None,
    replay: Path | None = None,
) -> VariantComparison:
    """Run every variant under the same seeds. `observe` gets the variant and the steps done of its seed.

    Raises `ConfigError` for a variant or a recorded run that cannot be used, `TrainerError` for a run that
    stalls.
    """
    if replay is not None:
        config = with_recorded(config, replay)
    names = list(dict.fromkeys(chosen or DEFAULT_ARMS))
    configured = {name: arm(config, name) for name in names}
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds give no figures: ask for at least 1.")
    return VariantComparison(
        config,
        {name: simulate(each, seeds, partial(observe, name)) for name, each in configured.items()},
    )


_RECYCLE_STALENESS = 64
"""APRIL does not bound staleness. This only keeps a rollout from continuing for ever."""

_PERIODIC = {
    "max_staleness": PERIODIC["max_staleness"],
    "consumption": PERIODIC["when_stale"],
    "micro_batches": 8,
}
_ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "sync": {"trainer": {"max_staleness": 0}, "work": {"sampling": "batch"}, "updates": {"mode": "between"}},
    "one-step": {
        "trainer": {"max_staleness": 1},
        "work": {"sampling": "batch"},
        "updates": {"mode": "between"},
    },
    "periodic": {"trainer": _PERIODIC, "updates": {"mode": "between"}},
    "recycle": {
        "trainer": {
            "max_staleness": _RECYCLE_STALENESS,
            "over_launch": 2,
            "consumption": "drop",
            "alone": True,
        },
        "updates": {"mode": "global", "drain_s": 0},
    },
    "over-launch": {"trainer": {"max_staleness": 4, "over_launch": 2, "consumption": "drop"}},
}
_OWN = "as-given"


def names() -> list[str]:
    """Names of the variants. `eta-N` takes any number."""
    return [_OWN, *_ARMS, "eta-1", "eta-2", "eta-4", "eta-8"]


def arm(config: SimulationConfig, name: str) -> SimulationConfig:
    """A configuration changed to a variant. `as-given` changes nothing.

    Raises `ConfigError` for an unknown name.
    """
    if name == _OWN:
        return config
    eta = re.fullmatch(r"eta-(\d+)", name)
    if eta is None and name not in _ARMS:
        raise ConfigError(f"There is no arm {name!r}. {nearest(name, names())}")
    changes = {"trainer": {"max_staleness": int(eta[1])}} if eta else _ARMS[name]
    raw = config.model_dump()
    raw["name"] = name
    for section, values in changes.items():
        raw[section] |= values
    if not eta and raw["trainer"]["groups_per_step"] % raw["trainer"]["micro_batches"]:
        raw["trainer"]["micro_batches"] = raw["trainer"]["groups_per_step"]
    return validate(SimulationConfig, raw, f"arm {name}")
