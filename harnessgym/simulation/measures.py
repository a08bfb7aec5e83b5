"""What is measured while virtual time passes, from the end of the warm-up on."""

from collections import Counter

from harnessgym.simulation.clock import Clock


class Level:
    """A number over time, and its mean."""

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
        """Forget what was measured, not the number."""
        self._since = self._start = self._clock.now
        self._area = 0.0
        self.highest = self.value

    def integral(self) -> float:
        """The number times seconds."""
        return self._area + self.value * (self._clock.now - self._since)

    def mean(self) -> float:
        """Over the time since the start."""
        seconds = self._clock.now - self._start
        return self.integral() / seconds if seconds else 0.0


class Measures:
    """Levels and counters of one simulation."""

    def __init__(self, clock: Clock) -> None:
        self._levels: dict[str, Level] = {}
        self._clock = clock
        self.counts: Counter[str] = Counter()
        """Events by name, since the start of the simulation."""
        self.since = 0.0
        """When the warm-up ended."""
        self.before: Counter[str] = Counter()
        """The counts then."""
        self.staleness: Counter[int] = Counter()
        """Trained tokens by staleness."""
        self.versions: Counter[int] = Counter()
        """Trained rollouts by how many versions sampled them."""

    def level(self, name: str) -> Level:
        """A level by its name, made if new."""
        if name not in self._levels:
            self._levels[name] = Level(self._clock)
        return self._levels[name]

    def levels(self) -> dict[str, Level]:
        """All of them."""
        return self._levels

    def restart(self) -> None:
        """The warm-up is over: what was measured does not count."""
        self.since = self._clock.now
        self.before = Counter(self.counts)
        self.staleness.clear()
        self.versions.clear()
        for level in self._levels.values():
            level.restart()

    def counted(self, name: str) -> int:
        """Events of a name since the warm-up."""
        return self.counts[name] - self.before[name]
