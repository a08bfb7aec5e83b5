"""Which tokens of a session have their routed experts stored. A call stores only those that it adds."""

from dataclasses import dataclass, field

from harnessgym.routed_experts import RoutedExperts
from proxies.call import Call


@dataclass
class StoredExperts:
    """A session's stored experts. This is not restored: after a restart of the proxy a call stores those of
    its whole prompt again.
    """

    _ends: dict[str, int] = field(default_factory=dict)
    """Completion segment to the number of tokens up to its end that have them."""

    def known(self, call: Call) -> int:
        """How many of a call's first tokens have them from the calls that it continues."""
        parent = call.prompt.parent
        return 0 if parent is None else self._ends.get(parent.segment_id, 0)

    def added(self, call: Call) -> RoutedExperts | None:
        """What a call's engine reported of other tokens; None if nothing."""
        reported = call.sampled.routed_experts
        added = None if reported is None else reported.beginning_at(self.known(call))
        return None if added is None or not len(added.experts) else added

    def stored(self, call: Call, completion: str) -> None:
        """Note that a call with this completion segment is stored."""
        reported = call.sampled.routed_experts
        end = max(self.known(call), 0 if reported is None else reported.end)
        if end:
            self._ends[completion] = end
