"""Stops a node after too many infrastructure errors or dropped groups in a row."""

from collections.abc import Mapping

from harnessgym.errors import SandboxError
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow

_REMEDY = "Fix this and start the run again; it resumes."


class CircuitBreaker:
    """Counts consecutive failures. `limit` bounds the failed rollouts and the dropped groups alike."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.failures = 0
        self._last = ""
        self._seen: tuple[int, int] | None = None
        """Useful and dropped groups, as counted when the number of useful ones last rose."""

    def succeeded(self) -> None:
        """Note that a rollout got a verdict."""
        self.failures = 0

    def failed(self, row: RolloutRow, outcome: RolloutOutcome) -> None:
        """Note an infrastructure error. Raises `SandboxError` at the `limit`th in a row."""
        self.failures += 1
        self._last = f"of harness {row.harness!r}: {outcome.cause or outcome.stop_reason}: {outcome.detail}"
        if self.failures >= self.limit:
            raise SandboxError(
                f"{self.failures} rollouts in a row failed for reasons that are not the policy's; the last, "
                f"{self._last}\n{_REMEDY}"
            )

    def groups(self, states: Mapping[str, int]) -> None:
        """Note the training groups by state; `dropped` leaves out those that the trainer gave up.

        Raises `SandboxError` if `limit` groups were dropped since one last completed.
        """
        useful = states.get("complete", 0) + states.get("consumed", 0)
        dropped = states.get("dropped", 0)
        if self._seen is None or useful > self._seen[0]:
            self._seen = useful, dropped
        elif dropped - self._seen[1] >= self.limit:
            # The rollouts of these groups may all have failed on other nodes.
            last = f"The last failure, {self._last}" if self._last else "This node saw none of the failures."
            raise SandboxError(
                f"{dropped - self._seen[1]} groups in a row were dropped, because too few rollouts of each "
                f"had a verdict: the trainer gets nothing. {last}\n{_REMEDY}"
            )
