"""A proxy that looks at itself while it works: `harnessgym proxy` with a timer that notes what its event loop
is doing.

    python -m benchmarks.proxy.sampler PROFILE.json --store ... (settings of the proxy)

The timer runs on the process's own processor time, and its signal is handled in the thread of the event loop.
A thread of its own could look only when another gives up the interpreter's lock, and would find everybody at
the places where they do. What the store's writer uses is not in here: see the processor time by thread.
"""

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from harnessgym.config import load_config
from proxies.app import ProxySettings, serve

_PERIOD_S = 0.002
_PACKAGES = ("proxies", "harnessgym")


class Sampler:
    """Counts the functions on the stack, and the modules in which the time itself is spent."""

    def __init__(self) -> None:
        self.inclusive: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self.samples = 0

    def __call__(self, _: int, frame: FrameType | None) -> None:
        """Take a sample (a signal handler)."""
        if frame is None:
            return
        self.samples += 1
        self.own[str(frame.f_globals.get("__name__", "?"))] += 1
        seen, at = set[str](), frame
        while at is not None:
            module = str(at.f_globals.get("__name__", "?"))
            if module.startswith(_PACKAGES):
                seen.add(f"{module}.{at.f_code.co_qualname}")
            at = at.f_back  # type: ignore[assignment]
        self.inclusive.update(seen)


def main() -> None:
    """Serve, then write the profile."""
    path, settings = Path(sys.argv[1]), load_config(ProxySettings, None, sys.argv[2:])
    sampler, began = Sampler(), time.process_time()
    signal.signal(signal.SIGPROF, sampler)
    signal.setitimer(signal.ITIMER_PROF, _PERIOD_S, _PERIOD_S)
    serve(settings)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    total = sampler.samples or 1
    profile = {
        "cpu_s": round(time.process_time() - began, 2),
        "samples": sampler.samples,
        "inclusive_percent": {
            name: round(100 * count / total, 1) for name, count in sampler.inclusive.most_common(60)
        },
        "own_percent_by_module": {
            name: round(100 * count / total, 1) for name, count in sampler.own.most_common(30)
        },
    }
    path.write_text(json.dumps(profile, indent=2))


if __name__ == "__main__":
    main()
