"""Seeds side by side, one process each."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

from harnessgym.simulation.outcome import SimulationOutcome
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run."""

    outcome: SimulationOutcome
    unaccounted: int
    """Sampled tokens that are neither trained nor given up nor there."""
    cpu_s: float
    """Of the processor, for all of it."""


def runs(config: SimulationConfig, seeds: int) -> list[Run]:
    """The same configuration under the first `seeds` seeds."""
    return list(_pool().map(_run, [config.model_copy(update={"seed": seed}) for seed in range(seeds)]))


def _run(config: SimulationConfig) -> Run:
    began = time.process_time()
    simulation = Simulation(config)
    outcome, account = simulation.run(), simulation.account()
    unexplained = account.sampled - account.trained - account.dropped - account.failed - account.left
    return Run(outcome, abs(unexplained), time.process_time() - began)


@cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
