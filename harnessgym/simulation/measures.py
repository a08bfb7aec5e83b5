"""Measurements over virtual time, from the end of the warm-up on."""

from collections import Counter

from harnessgym.simulation.clock import Clock


class Level:
    """A number that changes over time, and its time average."""

    __slots__ = ("_area", "_clock", "_since", "_start", "highest", "value")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.value = self.highest = 0
        self._area = 0.0
        self._since = self._start = clock.now

    def add(self, change: int) -> None:
        """Change the number now."""
        now = self._clock.now
        self._area += self.value * (now - self._since)
        self._since = now
        self.value += change
        self.highest = max(self.highest, self.value)

    def restart(self) -> None:
        """Forget the measurements but keep the number."""
        self._since = self._start = self._clock.now
        self._area = 0.0
        self.highest = self.value

    def integral(self) -> float:
        """Integral of the number over time, in seconds."""
        return self._area + self.value * (self._clock.now - self._since)

    def mean(self) -> float:
        """Mean over the time since the last restart."""
        seconds = self._clock.now - self._start
        return self.integral() / seconds if seconds else 0.0


class Measures:
    """The levels and counters of one simulation."""

    def __init__(self, clock: Clock) -> None:
        self._levels: dict[str, Level] = {}
        self._clock = clock
        self.counts: Counter[str] = Counter()
        """Events by name since the start of the simulation."""
        self.since = 0.0
        """Time at which the warm-up ended."""
        self.before: Counter[str] = Counter()
        """The counts at that time."""
        self.staleness: Counter[int] = Counter()
        """Trained tokens by staleness."""
        self.versions: Counter[int] = Counter()
        """Trained rollouts by the number of versions that sampled them."""

    def level(self, name: str) -> Level:
        """A level by its name, created if new."""
        if name not in self._levels:
            self._levels[name] = Level(self._clock)
        return self._levels[name]

    def levels(self) -> dict[str, Level]:
        """All levels by name."""
        return self._levels

    def restart(self) -> None:
        """End the warm-up: discard what was measured."""
        self.since = self._clock.now
        self.before = Counter(self.counts)
        self.staleness.clear()
        self.versions.clear()
        for level in self._levels.values():
            level.restart()

    def counted(self, name: str) -> int:
        """Number of events of a name since the warm-up."""
        return self.counts[name] - self.before[name]
