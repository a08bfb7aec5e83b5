"""The calls of a session that a retry may join.

A session may have hundreds in flight and thousands whose client left before it was answered, so a retry is
found by its digest, and finished calls are forgotten many at a time.
"""

from proxies.call import Call


class RecentCalls:
    """Calls of this process. The latest ones that are over are kept, and all that are not."""

    def __init__(self, remembered: int) -> None:
        """Of the calls that are over, at least the `remembered` latest are kept."""
        self._remembered = remembered
        self._calls: dict[str, Call] = {}
        """By id, oldest first."""
        self._by_digest: dict[str, dict[str, Call]] = {}
        self._most = 2 * remembered
        """How many calls there may be before any is forgotten."""

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Add a call. The oldest ones that are over may be forgotten."""
        self._calls[call.id] = call
        self._by_digest.setdefault(call.digest, {})[call.id] = call
        if len(self._calls) > self._most:
            self._forget()
            # As many again as are left, so that a call is looked at a few times in all, however many wait.
            self._most = 2 * max(len(self._calls), self._remembered)

    def get(self, call_id: str) -> Call | None:
        """The call with an id; None if it is unknown or forgotten."""
        return self._calls.get(call_id)

    def equal(self, digest: str) -> list[Call]:
        """The calls of equal requests, newest first."""
        return list(reversed(self._by_digest.get(digest, {}).values()))

    def _forget(self) -> None:
        # A retry of a forgotten call would be sampled a second time, so a call whose client has not been
        # given its answer is kept however many there are.
        over = [call for call in self._calls.values() if call.over]
        for call in over[: -self._remembered]:
            del self._calls[call.id]
            equal = self._by_digest[call.digest]
            del equal[call.id]
            if not equal:
                del self._by_digest[call.digest]
