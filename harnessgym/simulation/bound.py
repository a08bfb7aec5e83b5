"""Upper bounds on the trained rollouts per second of a run, over the run's own draws.

W workers decode R(n) tokens/s with n calls each. A rollout takes w decoded tokens (prompts at their prefill
cost, each read once), e seconds of its environment and g of a grader. There are S environments, K graders and
batches of N rollouts. A training step takes T seconds and an update U. The bound is the least of four terms:

**engines** At throughput X, X·E[e] environments are busy without a call (Little's law), so at most n = (S -
X·E[e]) / W calls share a worker. R is concave, so by Jensen's inequality the fleet decodes at most W·R(n),
however calls are spread over workers and time, and X·E[w] ≤ W·R((S - X·E[e]) / W). The bound is the X where
both sides are equal. For S → ∞ it is W·R(max_batch)/E[w]; with one call per worker it is the familiar
min(W·rate/E[tokens], S/E[rollout time]).

**graders** X ≤ K / E[g].  **trainer** X ≤ N / T.

**path** Batch k is submitted when version k - η serves, that is after step k - η - 1 and its update. It is
trained when its last rollout has ended: t_k ≥ t_(k-η-1) + U + max of its N rollouts + T. If nothing else
mattered, η + 1 batches would take U + E[max of N] + T, and X ≤ (η + 1)·N / (U + E[max of N] + T). This shows
the heavy tail and the effect of η: E[max of N] grows like exp(sigma √(2 ln N)) for lognormal lengths and like
N^(1/alpha) for Pareto ones, and η + 1 batches share one maximum. η = 0 is synchronous training, with steps of
U + E[max of N] + T. But a late batch also delays all batches after it, rollouts wait for an environment, a
rolling update takes W / f rounds, and carry-over comes in whole batches. `harnessgym.simulation.schedule` has
the recursion for all of this, draw by draw. At λ seconds per decoded token it gives t_k(λ). With λ = 1 /
`tokens_per_s`, the rate of a call that is alone, no run finishes step k earlier.

Calls share workers, though. With n calls a worker takes λ(n) = 1/alone + (n - 1)/most seconds for a token of
each, and decodes most if calls are spread evenly over the workers (R is concave). So λ follows the load, span
by span: the recursion at some λ(t) gives the number of calls decoded in each span, which give a new λ(t).
This is iterated until both agree, starting from 1 / `tokens_per_s`, the lower limit of λ. This step holds on
average, not draw by draw, because it spreads the tokens of a rollout evenly over its time. A drain counts as
E[min(drain, longest rest of the calls in flight)].

When groups are given up and replaced by others, the path sets no limit. Nor does it when groups are replayed:
they take at most a share of each batch, and engines and graders then allow correspondingly more.

Every term is over the draws of the counted steps, those after the warm-up. Some rollouts of these batches
were sampled before the warm-up ended, so a run may exceed the bound slightly, more so with few steps.
"""

from dataclasses import asdict, dataclass

import numpy as np

from harnessgym.simulation.distributions import Floats
from harnessgym.simulation.draws import WorkTable
from harnessgym.simulation.pace import Pace
from harnessgym.simulation.schedule import groups_launched, step_times
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.worker import call_s, decoding_rate

_ROUNDS = 60
_CLOSE = 1e-4
_NEAR = 1e-2
"""The iteration ends after `_ROUNDS`, or when throughput changes by less than `_CLOSE` and λ(t) is off by
less than `_NEAR` on average."""
_STEP = 0.7
"""Damping: the share of the way that each round moves λ(t) towards the load's value."""
_SPANS = 8
"""Spans of λ(t) in the time of a rollout that is alone."""
_POINTS = 9
"""Points of the integral over a drain."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Bound:
    """Rollouts per second that each part allows; infinity for a part that sets no limit."""

    engines: float
    graders: float
    trainer: float
    path: float

    @property
    def rollouts_per_s(self) -> float:
        """The least of the parts."""
        parts: dict[str, float] = asdict(self)
        return min(parts.values())

    @property
    def limit(self) -> str:
        """The part with the least."""
        parts: dict[str, float] = asdict(self)
        return min(parts, key=parts.__getitem__)


def bound_of(config: SimulationConfig, work: WorkTable | None = None) -> Bound:
    """The bounds of a configuration over the draws of its seed, or over `work` of `rollouts_needed` draws."""
    work = work or WorkTable.of(config, rollouts_needed(config))
    trainer = config.trainer
    batch = config.batch
    counted = slice(trainer.warmup * batch, trainer.steps * batch)
    decoding = float(work.decoding[counted].mean())
    grading = float(work.grading_s[counted].mean())
    step_s = trainer.step_s.expected()
    sampled = trainer.groups_per_step / (trainer.groups_per_step - trainer.replayed)
    return Bound(
        engines=sampled * _engines(config, decoding, float(work.environment_s[counted].mean())),
        graders=sampled * config.work.graders / grading if grading else _NEVER,
        trainer=batch / step_s if step_s else _NEVER,
        path=_NEVER if trainer.reuse else _path(config, work),
    )


def rollouts_needed(config: SimulationConfig) -> int:
    """Number of draws that the bound needs: all rollouts that can be submitted before the last step ends."""
    return max(groups_launched(config) * config.trainer.group_size, config.trainer.steps * config.batch)


def _path(config: SimulationConfig, work: WorkTable) -> float:
    """The rate at which the recursion and the engines' load agree; see the module's docstring."""
    engines = config.engines
    steps = config.trainer.steps
    warmup = config.trainer.warmup
    alone_s = float((work.environment_s + work.decoding / engines.tokens_per_s).mean())
    pace = Pace.even(1 / engines.tokens_per_s, alone_s / _SPANS)
    drain_s = 0.0
    before = _NEVER
    rate = _NEVER
    for _ in range(_ROUNDS):
        course = step_times(config, work, pace, drain_s)
        seconds = course.trained_s[-1] - (course.trained_s[warmup - 1] if warmup else 0.0)
        if course.gives_up or not seconds:
            return _NEVER
        before = rate
        rate = (steps - warmup) * config.batch / seconds
        calls = np.array(course.calls_s) / (pace.span_s * engines.workers)
        drain_s = _drain_s(config, work, float(calls.mean()))
        pace, off = _towards(pace, call_s(engines, calls), calls)
        if abs(rate / before - 1) < _CLOSE and off < _NEAR:
            break
    # The last two rates may lie on both sides of the solution. An upper bound takes the greater.
    return max(before, rate)


def _towards(pace: Pace, met_s: Floats, calls: Floats) -> tuple[Pace, float]:
    """The pace moved one step towards the load's, and the relative error before the step."""
    was = np.full(len(calls), pace.token_s[-1])
    was[: len(pace.token_s)] = pace.token_s[: len(calls)]
    token_s = was + _STEP * (met_s - was)
    tokens = calls / was
    off = np.average(abs(met_s / was - 1), weights=tokens)
    return Pace(token_s.tolist(), float(np.average(token_s, weights=tokens)), pace.span_s), float(off)


def _drain_s(config: SimulationConfig, work: WorkTable, calls: float) -> float:
    """E[min(drain, the longest rest of a worker's calls)] for a Poisson number of calls with this mean.

    A call met in flight tends to be a long one, at a uniform point: its rest is below x with probability
    E[min(call, x)] / E[call]. A draining worker gets no other calls, so the rest is decoded at most as fast
    as a call that is alone.
    """
    calls_s = work.call_tokens / config.engines.tokens_per_s
    seconds = np.linspace(0.0, config.updates.drain_s, _POINTS)
    below = np.array([np.minimum(calls_s, second).mean() for second in seconds]) / calls_s.mean()
    return float(np.trapezoid(1 - np.exp(-calls * (1 - below)), seconds))


def _engines(config: SimulationConfig, decoding: float, environment_s: float) -> float:
    """The largest X with X·E[w] ≤ W·R((S - X·E[e]) / W), by bisection: left grows with X, right falls."""
    engines = config.engines
    work = config.work

    def too_fast(rate: float) -> bool:
        calls = min((work.environments - rate * environment_s) / engines.workers, engines.max_batch)
        return calls <= 0 or rate * decoding > engines.workers * decoding_rate(engines, calls)

    # 60 halvings reach the precision of a float.
    low, high = 0.0, engines.workers * decoding_rate(engines, engines.max_batch) / decoding
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if too_fast(middle) else (middle, high)
    return high
