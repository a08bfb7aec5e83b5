"""Everything random about rollouts and steps, a function of the seed and the place alone.

Arms of a comparison get the same draws: rollout r of the seed is the same work whoever runs it, and whenever.
"""

from dataclasses import dataclass

import numpy as np

from trainers.simulation.distributions import Floats
from trainers.simulation.settings import SimulationConfig

_BLOCK = 4_096
"""Rollouts drawn together."""
_WORK, _STEPS, _TRANSFERS, _INSTALLS, _FAILURES = range(5)


@dataclass(frozen=True, slots=True)
class RolloutDraw:
    """One rollout's work."""

    tokens: tuple[int, ...]
    """Sampled, per call."""
    read: tuple[int, ...]
    """Added to the prompt, per call."""
    environment_s: tuple[float, ...]
    """After each call."""
    grading_s: float


class Draws:
    """The draws of one seed."""

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._blocks: dict[int, list[RolloutDraw]] = {}
        options = config.trainer
        self.step_s: list[float] = options.step_s.draw(self._rng(_STEPS), options.steps).tolist()
        self.failures = self._rng(_FAILURES)
        """For what breaks."""
        self._transfers, self._installs = self._rng(_TRANSFERS), self._rng(_INSTALLS)
        self._seconds: dict[int, list[float]] = {_TRANSFERS: [], _INSTALLS: []}

    def rollout(self, number: int) -> RolloutDraw:
        """Rollout `number` of the seed."""
        block, place = divmod(number, _BLOCK)
        if block not in self._blocks:
            self._blocks[block] = self._draw(block)
        return self._blocks[block][place]

    def transfer_s(self) -> float:
        """Seconds of the next fetch of weights."""
        return self._next(_TRANSFERS)

    def install_s(self) -> float:
        """Seconds of the next installation."""
        return self._next(_INSTALLS)

    def _next(self, kind: int) -> float:
        left = self._seconds[kind]
        if not left:
            options = self._config.updates
            distribution, rng = (
                (options.transfer_s, self._transfers) if kind == _TRANSFERS else (options.install_s, self._installs)
            )
            left += distribution.draw(rng, _BLOCK).tolist()
        return left.pop()

    def _rng(self, kind: int, place: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._config.seed, kind, place])

    def _draw(self, block: int) -> list[RolloutDraw]:
        work, rng = self._config.work, self._rng(_WORK, block)
        turns = np.maximum(1, np.rint(work.turns.draw(rng, _BLOCK))).astype(np.int64)
        calls = int(turns.sum())
        tokens = np.maximum(1, np.rint(work.tokens.draw(rng, calls))).astype(np.int64).tolist()
        read = np.rint(work.read.draw(rng, calls)).astype(np.int64).tolist()
        environment = work.environment_s.draw(rng, calls).tolist()
        grading = work.grading_s.draw(rng, _BLOCK).tolist()
        ends = np.cumsum(turns).tolist()
        return [
            RolloutDraw(tuple(tokens[at:end]), tuple(read[at:end]), tuple(environment[at:end]), seconds)
            for at, end, seconds in zip([0, *ends[:-1]], ends, grading, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Totals of many rollouts, as arrays [n]."""

    tokens: Floats
    """Sampled."""
    decoding: Floats
    """Decoded tokens that a worker's time goes into: those sampled, and prompts at `prefill_cost`, each read once."""
    environment_s: Floats
    grading_s: Floats

    @classmethod
    def of(cls, config: SimulationConfig, count: int) -> "WorkTable":
        """The first `count` rollouts of a configuration."""
        draws = Draws(config)
        found = [draws.rollout(number) for number in range(count)]
        tokens = np.array([sum(item.tokens) for item in found], dtype=np.float64)
        read = np.array([sum(item.read) for item in found], dtype=np.float64)
        environment = np.array([sum(item.environment_s) for item in found])
        return cls(
            tokens,
            tokens + config.engines.prefill_cost * read,
            environment,
            np.array([item.grading_s for item in found]),
        )

    def alone_s(self, config: SimulationConfig) -> Floats:
        """Seconds of each rollout if nothing were in its way, from its first call to its grade, [n]."""
        return self.decoding / config.engines.tokens_per_s + self.environment_s + self.grading_s
