"""How long a decoded token takes as a run goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a decoded token takes, in one span of time after another; the last span lasts for ever."""

    token_s: Sequence[float]
    mean_s: float
    """Of all tokens."""
    span_s: float = inf

    @classmethod
    def even(cls, token_s: float, span_s: float = inf) -> "Pace":
        """The same at any time."""
        return cls((token_s,), token_s, span_s)

    def left(self, begun: float, environment_s: float, decoding: float, calls_s: list[float]) -> float:
        """When a rollout that begins at a time has decoded so many tokens and spent so many seconds in its
        environment.

        It does both evenly: at any time it has done the same part of either. `calls_s` is what it adds to:
        seconds for which calls are decoded in each span.
        """
        last = len(self.token_s) - 1
        place = int(begun / self.span_s)
        at = begun
        rest = 1.0
        while True:
            decoding_s = decoding * self.token_s[min(place, last)]
            whole_s = environment_s + decoding_s
            end = (place + 1) * self.span_s
            ends = at + rest * whole_s <= end
            part = rest if ends else (end - at) / whole_s
            while place >= len(calls_s):
                calls_s.append(0.0)
            calls_s[place] += part * decoding_s
            if ends:
                return at + rest * whole_s
            rest -= part
            at = end
            place = place + 1
