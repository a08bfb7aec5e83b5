"""How fast a run could be: upper bounds on trained rollouts per second, whatever the schedule.

Let W workers decode R(n) tokens/s with n calls each, let a rollout take E[w] decoded tokens (prompts at their prefill cost,
each read once), E[e] seconds of its environments and E[g] of a grader, let there be S environments and K graders, batches of N
rollouts, a training step of T and an update of U seconds.

**engines** At throughput X, X·E[e] environments are busy without a call (Little's law), so at most n = (S - X·E[e]) / W calls
share a worker. R is concave, so by Jensen's inequality the fleet decodes at most W·R(n), however calls are spread over workers
and time, and X·E[w] ≤ W·R((S - X·E[e]) / W). The bound is the X where both sides meet. With S → ∞ it is W·R(max_batch)/E[w];
with one call a worker it is the familiar min(W·rate/E[tokens], S/E[rollout time]).

**graders** X ≤ K / E[g].  **trainer** X ≤ N / T.

**staleness** Batch k (of 0, 1, ...) is submitted when version k - η serves, that is after step k - η - 1 and its update. It is
trained when its last rollout has ended: t_k ≥ t_(k-η-1) + U + E[max of N] + T, where the maximum is over rollouts that nothing
slows down. So η + 1 batches take at least U + E[max of N] + T, and X ≤ (η + 1)·N / (U + E[max of N] + T). The heavy tail is in
E[max of N], which grows like exp(sigma √(2 ln N)) for lognormal lengths and N^(1/alpha) for Pareto ones: η divides it. For
η = 0 this is the closed form of synchronous training, a step of U + E[max of N] + T.

**barrier** With η = 0 the phases add up: a batch is submitted when the last one's version serves, so it takes at least
N / X_engines + T' + U, with T' the part of the step that cannot overlap: all of it, or the last micro-batch.

Where the engines stand still while the trainer works (`alone`, recycling), only decoding stops: environments and graders go on
during T and U, so Little's law over the time of decoding alone says nothing of them. A batch's N·E[w] tokens are decoded at no
more than W·R(min(S / W, max_batch)), since S environments have at most S calls, outside the steps. Those take T' a batch.
Updates take decoding time only if they pause the fleet, which rolling ones need not: a worker fetches while it decodes. Nor has
every batch a pause to itself. Of L batches launched, up to L are trained between the beginnings of two pauses, for what is
submitted counts from the version served; and those after the first may be trained during a pause, in which environments and
graders have completed them. If calls in flight get no time to finish, a stretch without decoding that holds n ≤ L steps ends
with a whole pause after the last of them, n·T' + U at least: a batch takes N·E[w] / (W·R) + T' + U / L. If they get some,
decoding may part the pauses, steps fall into them, and all that is left is N·E[w] / (W·R) + max(T', U / L). X_engines holds
besides.
"""

from dataclasses import asdict, dataclass

from trainers.simulation.distributions import expected_largest
from trainers.simulation.draws import WorkTable
from trainers.simulation.settings import SimulationConfig
from trainers.simulation.worker import decoding_rate

_SAMPLE = 8_192
"""Rollouts whose draws the expectations are taken over."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Rollouts per second that each part allows. A part that sets no limit has infinity."""

    engines: float
    graders: float
    trainer: float
    staleness: float
    barrier: float

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
    """The bounds of a configuration, over the draws of its seed (or over `work`, which must be of it)."""
    work = work or WorkTable.of(config, _SAMPLE)
    trainer, batch = config.trainer, config.batch
    step_s, update_s = trainer.step_s.expected(), _update_s(config)
    engines = _engines(config, float(work.decoding.mean()), float(work.environment_s.mean()))
    largest = expected_largest(work.alone_s(config), batch)
    never = float("inf")
    grading = float(work.grading_s.mean())
    last_part = step_s / trainer.micro_batches
    ordered = trainer.consumption == "wait" or trainer.max_staleness == 0
    least_s = _least_s(config, engines, float(work.decoding.mean()), last_part, update_s)
    return Bound(
        engines=engines,
        graders=config.work.graders / grading if grading else never,
        trainer=batch / step_s if step_s else never,
        staleness=(trainer.max_staleness + 1) * batch / (update_s + largest + last_part) if ordered else never,
        barrier=batch / least_s if least_s else never,
    )


def _least_s(config: SimulationConfig, rate: float, decoding: float, last_part: float, update_s: float) -> float:
    """Seconds that a batch takes at least because not everything goes on at one time; 0 if nothing keeps it from that."""
    engines, trainer, updates = config.engines, config.trainer, config.updates
    if trainer.max_staleness == 0 and trainer.over_launch is None:
        return config.batch / rate + last_part + update_s
    if not trainer.alone:
        return 0.0
    calls = min(config.work.environments / engines.workers, engines.max_batch)
    decoding_s = config.batch * decoding / (engines.workers * decoding_rate(engines, calls))
    pause_s = 0.0 if updates.mode == "rolling" else update_s / (trainer.over_launch or trainer.max_staleness + 1)
    apart = updates.mode == "global" and not updates.drain_s
    return decoding_s + (last_part + pause_s if apart else max(last_part, pause_s))


def _update_s(config: SimulationConfig) -> float:
    """Seconds at least from a version's publication until the slowest worker serves it."""
    return config.updates.install_s.expected() + config.updates.transfer_s.expected()


def _engines(config: SimulationConfig, decoding: float, environment_s: float) -> float:
    """The largest X with X·E[w] ≤ W·R((S - X·E[e]) / W), by bisection: the left side grows with X, the right side falls."""
    engines, work = config.engines, config.work

    def too_fast(rate: float) -> bool:
        calls = min((work.environments - rate * environment_s) / engines.workers, engines.max_batch)
        return calls <= 0 or rate * decoding > engines.workers * decoding_rate(engines, calls)

    low, high = 0.0, engines.workers * decoding_rate(engines, engines.max_batch) / decoding
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if too_fast(middle) else (middle, high)
    return high
