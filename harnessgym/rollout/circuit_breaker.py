"""When a node stops trying: infrastructure errors, or dropped groups, one after another without a success
between them.
"""

from collections.abc import Mapping

from harnessgym.errors import SandboxError
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow

_REMEDY = "Fix this and start the run again; it resumes."


class CircuitBreaker:
    """Counts what goes wrong in a row. `limit` bounds both counts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.failures = 0
        self._last = ""
        self._seen: tuple[int, int] | None = None
        """Groups of use, and dropped ones, when the former last rose."""

    def succeeded(self) -> None:
        """A rollout had a verdict."""
        self.failures = 0

    def failed(self, row: RolloutRow, outcome: RolloutOutcome) -> None:
        """A rollout was ended by an infrastructure error. Raises `SandboxError` if that is one too many."""
        self.failures += 1
        self._last = f"of harness {row.harness!r}: {outcome.cause or outcome.stop_reason}: {outcome.detail}"
        if self.failures >= self.limit:
            raise SandboxError(
                f"{self.failures} rollouts in a row failed for reasons that are not the policy's; the last, "
                f"{self._last}\n{_REMEDY}"
            )

    def groups(self, states: Mapping[str, int]) -> None:
        """Look at the training groups by state, those that the trainer gave up apart.

        Raises `SandboxError` if more and more are dropped and none completes.
        """
        useful = states.get("complete", 0) + states.get("consumed", 0)
        dropped = states.get("dropped", 0)
        if self._seen is None or useful > self._seen[0]:
            self._seen = useful, dropped
        elif dropped - self._seen[1] >= self.limit:
            raise SandboxError(
                f"{dropped - self._seen[1]} groups in a row were dropped, because too few rollouts of each "
                "had a "
                f"verdict: the trainer gets nothing. The last failure, {self._last}\n{_REMEDY}"
            )
