"""A reference that follows the policy: a moving average of its weights, or a copy that is renewed."""

from collections.abc import Sequence
from typing import Any

from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.held_weights import HeldWeights
from trainers.policy import Policy
from trainers.reference_settings import AverageReference
from trainers.scoring import Scorer, TopTokens
from trainers.update_settings import UpdateSettings
from trainers.world import World


class AverageOfSteps:
    """theta_ref <- decay theta_ref + (1 - decay) theta, every so many steps (TRL's `sync_ref_model`; TR-DPO,
    arXiv 2404.09656). It starts as the policy's weights, and is in checkpoints.
    """

    def __init__(
        self, settings: AverageReference, policy: Policy, update: UpdateSettings, world: World
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.world = world
        self._scorer = Scorer(policy, update, world)
        self._held = HeldWeights(policy, world, device="cpu")
        self._steps = 0

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """See `Reference.logprobs`."""
        with self._held.in_place():
            return self._scorer.logprobs(rows)

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """See `Reference.top`."""
        with self._held.in_place():
            return self._scorer.top(rows, count, vocabulary)

    def stepped(self) -> None:
        """Add the weights after a step, if it is one of those that count."""
        self._steps += 1
        if self._steps % self.settings.every == 0:
            self._held.move_towards_policy(1 - self.settings.decay)

    def state(self) -> dict[str, Any]:
        """The average, and how many steps it has seen."""
        return {"weights": self._held.state(), "steps": self._steps}

    def load(self, state: dict[str, Any] | None) -> None:
        """Load a state; without one, it stays at the start. Raises `TrainerError` for one of another kind."""
        steps = self.world.broadcast(None if state is None else state.get("steps", -1))
        if steps is None:
            return
        if steps < 0:
            raise TrainerError(
                "The checkpoint's reference was another one, not an average: resume with the run's own "
                "settings, or begin a new run."
            )
        self._held.load((state or {}).get("weights", {}))
        self._steps = steps
