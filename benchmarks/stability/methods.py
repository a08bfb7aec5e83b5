"""What is compared: ways to learn from rollouts that an older policy sampled, in the words of a run file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessgym.config import validate
from trainers.update_settings import UpdateSettings


@dataclass(frozen=True, slots=True)
class Method:
    """An advantage and an update."""

    name: str
    advantage: str
    """Registered, a function of a group's rewards."""
    update: Mapping[str, Any] = field(default_factory=dict)
    """`[trainer.update]`, apart from `lr`."""

    def settings(self, lr: float, lag: int) -> UpdateSettings:
        """The update's settings at a learning rate. A moving average's window is the lag, at least 1."""
        given = dict(self.update)
        if given.get("proximal") == "ewma":
            given["proximal"] = {"name": "ewma", "window": max(lag, 1)}
        return validate(UpdateSettings, {"lr": lr, **given}, f"the method {self.name}")


def _weighed(*corrections: Mapping[str, Any]) -> dict[str, Any]:
    return {"loss": "reinforce", "proximal": "current", "corrections": list(corrections)}


METHODS = (
    Method("none", "grpo", _weighed()),
    Method("TIS", "grpo", _weighed({"name": "tis", "level": "token", "cap": 2.0})),
    Method("PPO", "grpo", {"loss": "ppo", "proximal": "behaviour"}),
    Method(
        "decoupled", "grpo",
        {"loss": "decoupled_ppo", "proximal": "loglinear", "corrections": [{"name": "mis", "level": "token", "cap": 5.0}]},
    ),
    Method(
        "EWMA", "grpo",
        {"loss": "decoupled_ppo", "proximal": "ewma", "corrections": [{"name": "icepop", "low": 0.2, "high": 5.0}]},
    ),
    Method(
        "VCPO", "reward",
        {**_weighed({"name": "tis", "level": "sequence", "cap": 8.0}), "lr_rule": "ess", "baseline": "minimum_variance"},
    ),
)  # fmt: skip
"""none: the plain policy gradient, as if every rollout were fresh. TIS: each token weighted by min(pi /
mu, 2). PPO: the ratio to the policy that sampled, clipped at 0.2. decoupled: clipped against A-3PO's
proximal policy, and weighted by its ratio to the one that sampled, masked above 5 (with one step per batch
AReaL's own proximal policy, the one that a batch's steps start from, never clips). EWMA: the same against
a moving average, masked outside [0.2, 5]. VCPO: rollouts weighted by min(pi / mu, 8), the learning rate by
their effective sample size (rho_0 = 1), and the baseline of least variance."""


def method(name: str) -> Method:
    """By name. Raises `KeyError`."""
    return {each.name: each for each in METHODS}[name]
