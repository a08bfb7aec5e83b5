"""When the proxy looks for reference cycles: no request waits for a search through everything it holds.

A proxy mostly holds sessions, which are in no cycle, and a full collection looks at all of them: a third of a
second after a few thousand calls, all of it on the event loop. So every second only what was made since then
is looked at, and what is left of it is not looked at again until no call is in flight. The memory that is
then free goes back to the system, from a thread: the C library keeps it by itself, tens of megabytes.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable

_SMALL = (2_000, 5, 1_000_000)
"""Thresholds of the collector: about a millisecond for the youngest objects, ten for those of five such runs,
and no full collection."""
_LIBC = ctypes.CDLL(None)
_LOOK_S = 1.0
_QUIET_S = 30.0
_LONGEST_S = 600.0


_M_ARENA_MAX = -8
"""Option of glibc's mallopt."""
_ARENAS = 2
"""Heaps that all threads share. By default each has its own, and what one frees the others do not use."""


def collect_little() -> None:
    """Leave older objects to `collect`. What exists so far is not looked at until no call is in flight."""
    gc.freeze()
    gc.set_threshold(*_SMALL)
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_ARENA_MAX, _ARENAS)


def _give_back_memory() -> None:
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


async def collect(
    busy: Callable[[], bool],
    *,
    look_s: float = _LOOK_S,
    quiet_s: float = _QUIET_S,
    longest_s: float = _LONGEST_S,
) -> None:
    """Collect what was made since the last look, every `look_s` seconds. Runs until it is cancelled.

    Everything is collected after `quiet_s` seconds if it is not `busy`, and after `longest_s` all the same.
    """
    collected_at = time.monotonic()
    left = False  # whether there may be garbage that only a full collection finds
    while True:
        await asyncio.sleep(look_s)
        made = any(gc.get_count()[1:])
        left = left or made
        age_s = time.monotonic() - collected_at
        if left and (age_s >= longest_s or (age_s >= quiet_s and not busy())):
            gc.unfreeze()
            collected_at = time.monotonic()
            left = False
        elif not made:
            continue
        gc.collect()
        gc.freeze()
        await asyncio.to_thread(_give_back_memory)
