"""How long a decoded token takes as a run goes on."""

from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class Pace:
    """Seconds a decoded token takes, in one span of time after another; the last span lasts for ever."""

    token_s: list[float]
    mean_s: float
    """Of all tokens."""
    span_s: float = inf
    calls_s: list[float] = field(default_factory=list)
    """Seconds for which calls are decoded in each span, of all rollouts that `left` was asked about."""

    @classmethod
    def even(cls, token_s: float, span_s: float = inf) -> "Pace":
        """The same at any time."""
        return cls([token_s], token_s, span_s)

    def left(self, begun: float, environment_s: float, decoding: float) -> float:
        """When a rollout that begins at a time has decoded so many tokens and spent so many seconds in its environment.

        It does both evenly: at any time it has done the same part of either.
        """
        last, place = len(self.token_s) - 1, int(begun / self.span_s)
        at, rest = begun, 1.0
        while True:
            decoding_s = decoding * self.token_s[min(place, last)]
            whole_s, end = environment_s + decoding_s, (place + 1) * self.span_s
            if at + rest * whole_s <= end:
                self._count(place, rest * decoding_s)
                return at + rest * whole_s
            part = (end - at) / whole_s
            self._count(place, part * decoding_s)
            rest -= part
            at, place = end, place + 1

    def _count(self, place: int, seconds: float) -> None:
        while place >= len(self.calls_s):
            self.calls_s.append(0.0)
        self.calls_s[place] += seconds
