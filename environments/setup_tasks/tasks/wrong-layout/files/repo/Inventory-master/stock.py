"""Counted things."""


class Stock:
    def __init__(self, counts):
        self.counts = dict(counts)

    def take(self, name, count=1):
        if self.counts.get(name, 0) < count:
            raise LookupError(name)
        self.counts[name] -= count
        return self.counts[name]
