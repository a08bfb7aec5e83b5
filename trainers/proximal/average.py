"""A moving average of past versions as the proximal policy (PPO-EWMA, revised)."""

from collections.abc import Sequence
from typing import Any

import torch

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.corrections.averaging import ewma_update
from trainers.gradients import score_all
from trainers.policy import Policy
from trainers.proximal.proximal import copies, having, parts, put
from trainers.update import UpdateMetrics
from trainers.update_settings import Ewma, UpdateSettings
from trainers.world import World


class MovingAverage:
    """theta_prox = sum beta^(t-k) theta_k / sum beta^(t-k) over all versions k <= t, including the first.

    beta = W / (W + 2) for tokens up to W versions old. If corrections keep a smaller share of a batch's
    tokens than `reset_below`, the average starts again from the weights after this step. It needs one more
    copy of the weights. (arXiv 2605.12070; the formula and the reset are taken from a third party's note, the
    moment of the reset within the step is our choice.)
    """

    def __init__(self, policy: Policy, update: UpdateSettings, settings: Ewma, world: World) -> None:
        self.policy = policy
        self.update = update
        self.settings = settings
        self.world = world
        self._mean = copies(policy)
        self._total = 1.0

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of all tokens of each row under the average, float32 [T]."""
        with having(self.policy, self._mean):
            return score_all(
                self.policy, rows, self.update.temperature, self.update.micro_batch_tokens, self.world
            )

    @torch.no_grad()
    def stepped(self, metrics: UpdateMetrics) -> None:
        """Add the weights after a step to the average."""
        if 1.0 - metrics.masked < self.settings.reset_below:
            self._begin()
            return
        self._total, share = ewma_update(self._total, self.settings.beta)
        for mean, part in zip(self._mean, parts(self.policy), strict=True):
            mean.lerp_(part, share)

    def state(self) -> dict[str, Any]:
        """The average, and the sum of its weights."""
        with having(self.policy, self._mean):
            if self.world.size > 1:
                from trainers.shards import gather_weights

                weights = gather_weights(self.policy)
            else:
                weights = {
                    name: tensor.to("cpu", copy=True) for name, tensor in self.policy.state_dict().items()
                }
        return {"weights": weights, "total": self._total}

    def load(self, state: dict[str, Any] | None) -> None:
        """Load a state; without one, start from the policy's weights."""
        total = self.world.broadcast(None if state is None else state["total"])
        if total is None:
            self._begin()
            return
        # The state is distributed by loading it into the policy, whose own weights are then restored.
        own = copies(self.policy)
        weights = (state or {}).get("weights", {})
        if self.world.size > 1:
            from trainers.shards import scatter_weights

            scatter_weights(self.policy, weights)
        else:
            self.policy.load_state_dict(weights)
        self._mean = copies(self.policy)
        self._total = total
        put(self.policy, own)

    def _begin(self) -> None:
        self._mean = copies(self.policy)
        self._total = 1.0
