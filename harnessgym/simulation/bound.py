"""How fast a run could be: upper bounds on trained rollouts per second, over the draws of the run itself.

Let W workers decode R(n) tokens/s with n calls each, let a rollout take w decoded tokens (prompts at their
prefill cost, each read once), e seconds of its environments and g of a grader, let there be S environments
and K graders, batches of N rollouts, a training step of T and an update of U seconds. The least of four terms
is the bound:

**engines** At throughput X, X·E[e] environments are busy without a call (Little's law), so at most n = (S -
X·E[e]) / W calls share a worker. R is concave, so by Jensen's inequality the fleet decodes at most W·R(n),
however calls are spread over workers and time, and X·E[w] ≤ W·R((S - X·E[e]) / W). The bound is the X where
both sides meet. With S → ∞ it is W·R(max_batch)/E[w]; with one call a worker it is the familiar
min(W·rate/E[tokens], S/E[rollout time]).

**graders** X ≤ K / E[g].  **trainer** X ≤ N / T.

**path** Batch k is submitted when version k - η serves, that is after step k - η - 1 and its update, and
trained when its last rollout has ended: t_k ≥ t_(k-η-1) + U + max of its N rollouts + T. Were this all, η + 1
batches would take U + E[max of N] + T, and X ≤ (η + 1)·N / (U + E[max of N] + T). There the heavy tail is,
and what η does about it: E[max of N] grows like exp(sigma √(2 ln N)) for lognormal lengths and like
N^(1/alpha) for Pareto ones, and η + 1 batches share one. For η = 0 it is synchronous training, a step of U +
E[max of N] + T. But one late batch holds up all that follow it in order, rollouts wait for an environment, a
roll goes through W / f rounds, and what is carried over comes in whole batches:
`harnessgym.simulation.schedule` has the recursion for all of it, draw by draw. At λ seconds a decoded token
it gives t_k(λ), and for λ = 1 / `tokens_per_s`, a call that is alone, no run does step k earlier.

Calls share workers, though. With n calls a worker takes λ(n) = 1/alone + (n - 1)/most seconds for a token of
each, and decodes most if calls are spread evenly over the workers (R is concave). So λ follows the load, one
span of time after another: the recursion at some λ(t) says how many calls are decoded in each span, they give
a λ(t), and so on until both agree, from 1 / `tokens_per_s` on, below which λ never is. This step holds on
average, not draw by draw: it spreads the tokens of a rollout evenly over its time. A drain is counted as
E[min(drain, longest rest of the calls in flight)].

When groups are given up and others come in their place, the path sets no limit. Nor does it when groups are
trained again, of which a batch has a share at most: engines and graders then allow so much more.

Every term is over the draws of the steps that count, those after the warm-up. As these batches were sampled,
in part, before the warm-up ended, a run may still exceed the bound a little, the more the fewer steps there
are.
"""

from dataclasses import asdict, dataclass

import numpy as np

from harnessgym.simulation.distributions import Floats
from harnessgym.simulation.draws import WorkTable
from harnessgym.simulation.pace import Pace
from harnessgym.simulation.schedule import course_of, groups_launched
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.worker import call_s, decoding_rate

_ROUNDS = 60
_CLOSE = 1e-4
_NEAR = 1e-2
"""Until the recursion and the load agree: so many, or until throughput changes by less and λ(t) is off by
less on average."""
_STEP = 0.7
"""How far λ(t) is moved in each towards what the calls meet."""
_SPANS = 8
"""Of λ(t), in the time of a rollout that is alone."""
_POINTS = 9
"""Of an integral over a drain."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Bound:
    """Rollouts per second that each part allows. A part that sets no limit has infinity."""

    engines: float
    graders: float
    trainer: float
    path: float

    @property
    def rollouts_per_s(self) -> float:
        """The least."""
        parts: dict[str, float] = asdict(self)
        return min(parts.values())

    @property
    def limit(self) -> str:
        """Which part sets it."""
        parts: dict[str, float] = asdict(self)
        return min(parts, key=parts.__getitem__)


def bound_of(config: SimulationConfig, work: WorkTable | None = None) -> Bound:
    """The bounds of a configuration, over the draws of its seed (or over `work`, which must be
    `rollouts_needed` of them).
    """
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
    """Rollouts whose draws the bound is over: all that can be submitted before the last step ends."""
    return max(groups_launched(config) * config.trainer.group_size, config.trainer.steps * config.batch)


def _path(config: SimulationConfig, work: WorkTable) -> float:
    """The rate at which the recursion and the engines' load agree: see above."""
    engines = config.engines
    steps = config.trainer.steps
    warmup = config.trainer.warmup
    alone_s = float((work.environment_s + work.decoding / engines.tokens_per_s).mean())
    pace = Pace.even(1 / engines.tokens_per_s, alone_s / _SPANS)
    drain_s = 0.0
    before = _NEVER
    rate = _NEVER
    for _ in range(_ROUNDS):
        course = course_of(config, work, pace, drain_s)
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
    return max(before, rate)


def _towards(pace: Pace, met_s: Floats, calls: Floats) -> tuple[Pace, float]:
    """The pace that is a step nearer to what so many calls would meet, and how far off it was, as a share
    of itself.
    """
    was = np.full(len(calls), pace.token_s[-1])
    was[: len(pace.token_s)] = pace.token_s[: len(calls)]
    token_s = was + _STEP * (met_s - was)
    tokens = calls / was
    off = np.average(abs(met_s / was - 1), weights=tokens)
    return Pace(token_s.tolist(), float(np.average(token_s, weights=tokens)), pace.span_s), float(off)


def _drain_s(config: SimulationConfig, work: WorkTable, calls: float) -> float:
    """E[min(drain, the longest rest of a worker's calls)], where it has so many on average, as many as chance
    has it (Poisson).

    A call that is met in flight is a long one, at any point: its rest is below x with probability E[min(call,
    x)] / E[call]. A worker that drains gets no others, so what is left is decoded as fast as a call that is
    alone, at most.
    """
    calls_s = work.call_tokens / config.engines.tokens_per_s
    seconds = np.linspace(0.0, config.updates.drain_s, _POINTS)
    below = np.array([np.minimum(calls_s, second).mean() for second in seconds]) / calls_s.mean()
    return float(np.trapezoid(1 - np.exp(-calls * (1 - below)), seconds))


def _engines(config: SimulationConfig, decoding: float, environment_s: float) -> float:
    """The largest X with X·E[w] ≤ W·R((S - X·E[e]) / W), by bisection: the left side grows with X, the
    right side falls.
    """
    engines = config.engines
    work = config.work

    def too_fast(rate: float) -> bool:
        calls = min((work.environments - rate * environment_s) / engines.workers, engines.max_batch)
        return calls <= 0 or rate * decoding > engines.workers * decoding_rate(engines, calls)

    low, high = 0.0, engines.workers * decoding_rate(engines, engines.max_batch) / decoding
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if too_fast(middle) else (middle, high)
    return high
