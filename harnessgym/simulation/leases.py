"""Update leases in memory, with the semantics of `harnessgym.store.leases`; a test compares the two."""

from dataclasses import dataclass, field


@dataclass
class Leases:
    """Who may use a named resource until when."""

    _held: dict[str, tuple[str, float]] = field(default_factory=dict)

    def acquire(self, resource: str, holder: str, now: float, ttl_s: float) -> bool:
        """Take a lease that is free, expired or already ours. False if another holds it."""
        found = self._held.get(resource)
        if found is not None and found[0] != holder and found[1] > now:
            return False
        self._held[resource] = (holder, now + ttl_s)
        return True

    def renew(self, resource: str, holder: str, now: float, ttl_s: float) -> bool:
        """Extend a lease we still hold. False if it was lost."""
        if self._held.get(resource, ("", 0.0))[0] != holder:
            return False
        self._held[resource] = (holder, now + ttl_s)
        return True

    def release(self, resource: str, holder: str) -> None:
        """Give a lease back, if we still hold it."""
        if self._held.get(resource, ("", 0.0))[0] == holder:
            del self._held[resource]

    def holder_of(self, resource: str, now: float) -> str | None:
        """Who holds a resource now."""
        found = self._held.get(resource)
        return found[0] if found is not None and found[1] > now else None
