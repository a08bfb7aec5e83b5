"""Arms under the same seeds, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from harnessgym.errors import ConfigError
from harnessgym.simulation import report, variants
from harnessgym.simulation.outcome import SimulationOutcome
from harnessgym.simulation.recorded import with_recorded
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.simulation import simulate

DEFAULT_ARMS = ("sync", "one-step", "eta-1", "eta-4", "periodic", "recycle")


@dataclass(frozen=True, slots=True)
class VariantComparison:
    """What came of every arm."""

    config: SimulationConfig
    outcomes: dict[str, list[SimulationOutcome]]
    """By arm, one per seed."""

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        rows = {name: report.figures(found) for name, found in self.outcomes.items()}
        single = {name: [outcome.told() for outcome in found] for name, found in self.outcomes.items()}
        return {
            "simulated": True,
            "config": self.config.model_dump(mode="json"),
            "arms": rows,
            "seeds": single,
        }

    def tables(self) -> list[Table]:
        """For people."""
        return report.tables(self.outcomes)


def compare(
    config: SimulationConfig,
    chosen: Sequence[str],
    seeds: int,
    observe: Callable[[str, int], None] = lambda _arm, _step: None,
    replay: Path | None = None,
) -> VariantComparison:
    """Run every arm under the same `seeds` seeds. `observe` is told the arm and the steps done of its present
    seed.

    Raises `ConfigError` for an arm or a recorded run that cannot be used, `TrainerError` for a run that
    stands still.
    """
    if replay is not None:
        config = with_recorded(config, replay)
    names = list(dict.fromkeys(chosen or DEFAULT_ARMS))
    configured = {name: variants.arm(config, name) for name in names}
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds give no figures: ask for at least 1.")
    return VariantComparison(
        config,
        {name: simulate(each, seeds, partial(observe, name)) for name, each in configured.items()},
    )
