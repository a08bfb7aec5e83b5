"""The seconds per decoded token over the course of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per decoded token in successive spans of time. The last span never ends."""

    token_s: Sequence[float]
    mean_s: float
    """Mean over all tokens."""
    span_s: float = inf

    @classmethod
    def even(cls, token_s: float, span_s: float = inf) -> "Pace":
        """A constant pace."""
        return cls((token_s,), token_s, span_s)

    def left(self, begun: float, environment_s: float, decoding: float, calls_s: list[float]) -> float:
        """When a rollout that begins at `begun` has decoded its tokens and finished in its environment.

        It does both evenly: at any time the same share of each is done. Adds to `calls_s` the seconds for
        which its calls are decoded in each span.
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
