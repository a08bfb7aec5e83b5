"""When the proxy looks for reference cycles: no request waits for a search through everything it holds.

A proxy mostly holds sessions, which are in no cycle, and a full collection looks at all of them: a third of a
second after a few thousand calls, all of it on the event loop. So the collector's own runs are small, and the
full ones come when no call is in flight.
"""

import asyncio
import gc
import time
from collections.abc import Callable

_SMALL = (2_000, 5, 1_000_000)
"""Thresholds of the collector: about a millisecond for the youngest objects, ten for those of five such runs,
and no full collection."""
_LOOK_S = 5.0
_LONGEST_S = 600.0
_LEAST = 100


def collect_little() -> None:
    """Leave full collections to `collect_in_quiet`; what exists so far is never looked at."""
    gc.freeze()
    gc.set_threshold(*_SMALL)


async def collect_in_quiet(
    busy: Callable[[], bool],
    *,
    look_s: float = _LOOK_S,
    longest_s: float = _LONGEST_S,
    least: int = _LEAST,
) -> None:
    """Collect everything when it has been found not to be `busy`, or after `longest_s` all the same. Runs
    until it is cancelled.

    It looks every `look_s` seconds, and collects only if there were `least` runs of the middle generation.
    """
    collected_at = time.monotonic()
    while True:
        await asyncio.sleep(look_s)
        late = time.monotonic() - collected_at >= longest_s
        if gc.get_count()[2] >= least and (late or not busy()):
            gc.collect()
            collected_at = time.monotonic()
