"""Whether what is trained is shorter than what was drawn: whoever takes what is complete first takes what
is short.
"""

from collections import Counter
from collections.abc import Collection

from harnessgym.store import TraceStore
from harnessgym.store.lengths import GroupLength, lengths

_SETTLED = ("consumed", "dropped")


class LengthBias:
    """Mean sampled tokens of the rollouts that a run has trained, over those of all that have ended, given up
    or not.

    Rollouts that still run are in neither, and are rather long: so the bias of a step is seen in full a few
    steps later. Groups that nothing changes any more are summed once.
    """

    def __init__(self, store: TraceStore, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._first = 0
        """Groups before this ordinal are in the sums."""
        self._ended, self._trained = Counter[str](), Counter[str]()

    def measure(self, taken: Collection[str] = ()) -> float:
        """The ratio, if the groups `taken` are trained too; 1 before anything is."""
        found = self.store.read(lambda conn: lengths(conn, self.run_id, self._first))
        while found and found[0].state in _SETTLED:
            self._first = found[0].ordinal + 1
            _add(self._ended, self._trained, found.pop(0), taken)
        ended = self._ended.copy()
        trained = self._trained.copy()
        for item in found:
            _add(ended, trained, item, taken)
        if not trained["tokens"] or not ended["tokens"]:
            return 1.0
        return (trained["tokens"] / trained["rollouts"]) / (ended["tokens"] / ended["rollouts"])


def _add(ended: Counter[str], trained: Counter[str], group: GroupLength, taken: Collection[str]) -> None:
    values = {"rollouts": group.rollouts, "tokens": group.tokens}
    ended.update(values)
    if group.state == "consumed" or group.id in taken:
        trained.update(values)
