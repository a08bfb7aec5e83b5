"""All randomness of rollouts and steps. A draw depends only on the seed and its index.

So all variants of a comparison get the same draws: rollout r of a seed is the same work whenever it runs.
"""

from dataclasses import dataclass, field

import numpy as np

from harnessgym.simulation.distributions import Floats
from harnessgym.simulation.settings import SimulationConfig

_BLOCK = 4_096
"""Rollouts drawn together."""
_WORK, _STEPS, _TRANSFERS, _INSTALLS, _FAILURES = range(5)


@dataclass(frozen=True, slots=True)
class RolloutDraw:
    """One rollout's work."""

    tokens: tuple[int, ...]
    """Tokens sampled in each call."""
    read: tuple[int, ...]
    """Tokens added to the prompt in each call."""
    environment_s: tuple[float, ...]
    """Seconds of the environment after each call."""
    grading_s: float


class Draws:
    """The draws of one seed."""

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._blocks: dict[int, _Block] = {}
        options = config.trainer
        self.step_s: list[float] = options.step_s.draw(self._rng(_STEPS), options.steps).tolist()
        self.failures = self._rng(_FAILURES)
        """Generator of failures."""
        self._transfers, self._installs = self._rng(_TRANSFERS), self._rng(_INSTALLS)
        self._seconds: dict[int, list[float]] = {_TRANSFERS: [], _INSTALLS: []}

    def rollout(self, number: int) -> RolloutDraw:
        """The work of rollout `number`."""
        block, place = divmod(number, _BLOCK)
        return self._block(block).rollouts[place]

    def table(self, count: int) -> "WorkTable":
        """Totals of the first `count` rollouts."""
        blocks = [self._block(number) for number in range(-(-count // _BLOCK))]
        tokens, read, environment, grading = np.concatenate([block.totals for block in blocks], axis=1)[
            :, :count
        ]
        decoding = tokens + self._config.engines.prefill_cost * read
        waits = np.concatenate([blocks[0].waits_s, blocks[0].totals[3]])
        return WorkTable(tokens, decoding, environment, grading, blocks[0].call_tokens, np.sort(waits))

    def transfer_s(self) -> float:
        """Seconds of the next weight transfer."""
        return self._next(_TRANSFERS)

    def install_s(self) -> float:
        """Seconds of the next installation."""
        return self._next(_INSTALLS)

    def _next(self, kind: int) -> float:
        left = self._seconds[kind]
        if not left:
            options = self._config.updates
            distribution, rng = (
                (options.transfer_s, self._transfers)
                if kind == _TRANSFERS
                else (options.install_s, self._installs)
            )
            left += distribution.draw(rng, _BLOCK).tolist()
        return left.pop()

    def _rng(self, kind: int, place: int = 0) -> np.random.Generator:
        # One generator per kind and block: drawing more of one kind does not shift the others.
        return np.random.default_rng([self._config.seed, kind, place])

    def _block(self, number: int) -> "_Block":
        if number not in self._blocks:
            self._blocks[number] = self._draw(number)
        return self._blocks[number]

    def _draw(self, block: int) -> "_Block":
        work = self._config.work
        rng = self._rng(_WORK, block)
        turns = np.maximum(1, np.rint(work.turns.draw(rng, _BLOCK))).astype(np.int64)
        calls = int(turns.sum())
        tokens = np.maximum(1, np.rint(work.tokens.draw(rng, calls))).astype(np.int64)
        read = np.rint(work.read.draw(rng, calls)).astype(np.int64)
        environment = work.environment_s.draw(rng, calls)
        grading = work.grading_s.draw(rng, _BLOCK)
        ends = np.cumsum(turns)
        starts = ends - turns
        totals = np.array(
            [*(np.add.reduceat(values, starts) for values in (tokens, read, environment)), grading],
            np.float64,
        )
        sampled = tokens.tolist()
        added = read.tolist()
        waited = environment.tolist()
        rollouts = [
            RolloutDraw(tuple(sampled[at:end]), tuple(added[at:end]), tuple(waited[at:end]), seconds)
            for at, end, seconds in zip(starts.tolist(), ends.tolist(), grading.tolist(), strict=True)
        ]
        return _Block(rollouts, totals, tokens.astype(np.float64), environment)


@dataclass(frozen=True, slots=True)
class _Block:
    rollouts: list[RolloutDraw]
    totals: Floats
    """Of each rollout: tokens, tokens read, seconds of its environment and of its grader, [4, n]."""
    call_tokens: Floats
    waits_s: Floats
    """Seconds of the environment after each call."""


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Totals of n rollouts, as arrays [n], and single calls and waits of some of them, [m]."""

    tokens: Floats
    """Sampled tokens."""
    decoding: Floats
    """Tokens in units of decoding time: sampled ones, and prompts at `prefill_cost`, each read once."""
    environment_s: Floats
    grading_s: Floats
    call_tokens: Floats
    """Sampled tokens of single calls."""
    waits_s: Floats
    """Single waits for an environment or a grader, ascending."""
    _sums: list[Floats] = field(default_factory=list, repr=False)
    """Cumulative sums of the waits and of their squares."""

    @classmethod
    def of(cls, config: SimulationConfig, count: int) -> "WorkTable":
        """The table of the first `count` rollouts of a configuration."""
        return Draws(config).table(count)

    def alone_s(self, config: SimulationConfig) -> Floats:
        """Seconds of each rollout without any contention, from its first call to its grade, [n]."""
        return self.decoding / config.engines.tokens_per_s + self.environment_s + self.grading_s

    def gained_s(self, pause_s: float, token_s: float) -> float:
        """Upper bound on the mean progress of a rollout, in seconds, while nothing is decoded for `pause_s`.

        A rollout is in a wait when the pause begins with probability E[waits] / (E[waits] + E[decoding]), and
        in a long wait more often than in a short one. At most the whole wait is still ahead.
        """
        if not self._sums:
            self._sums.extend(np.concatenate([[0.0], np.cumsum(self.waits_s**power)]) for power in (1, 2))
        total, squares = self._sums
        short = int(np.searchsorted(self.waits_s, pause_s))
        waiting = float(self.environment_s.mean() + self.grading_s.mean())
        if not waiting or not total[-1]:
            return 0.0
        # Length-biased mean of min(wait, pause): a wait is met in proportion to its length.
        met = (squares[short] + pause_s * (total[-1] - total[short])) / total[-1]
        return float(met) * waiting / (waiting + token_s * float(self.decoding.mean()))
