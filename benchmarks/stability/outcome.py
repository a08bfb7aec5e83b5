"""How a run is judged, fixed before any was looked at.

final: the mean of the last tenth of the curve of expected rewards (at least its last point). collapsed: the
final reward is below the reward at the start, or below half of the best that the curve reached, or the
gradient ceased to be finite. ess: the mean over updates of the effective sample size (sum w)^2 / (B sum w^2)
of the B rollouts of a batch, w = pi / mu of the whole rollout, before any truncation (as VCPO has it; of
one-token rollouts it is that of the tokens).
"""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from trainers.update import UpdateMetrics


def outcome(
    curve: Sequence[float], seen: Sequence[UpdateMetrics], steps: int, failed: str | None
) -> dict[str, Any]:
    """A run's figures. `curve` begins before the first step; `seen` leaves out steps without a signal."""
    final = mean(curve[-max(len(curve) // 10, 1) :])
    fell = final < curve[0] or final < max(curve) / 2
    return {
        "start": curve[0],
        "final": final,
        "best": max(curve),
        "collapsed": fell or failed is not None,
        "failed": failed,
        "updates": len(seen),
        "steps": steps,
        "ess": mean(each.rollout_ess for each in seen) if seen else 1.0,
        "least_ess": min((each.rollout_ess for each in seen), default=1.0),
        "clipped": mean(each.clip_fraction for each in seen) if seen else 0.0,
        "masked": mean(each.masked for each in seen) if seen else 0.0,
        "curve": [round(value, 4) for value in curve],
    }
