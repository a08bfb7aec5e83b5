"""The losses and their settings, without torch. The function of a loss is loaded by name when it is computed.

To add your own, subclass `LossSettings` and name it as `module:Class`.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harnessgym.config import Config

if TYPE_CHECKING:
    from trainers.update_settings import UpdateSettings


class NamedPart(Config):
    """The settings of a loss or a correction: a function, by name, and its arguments as fields."""

    function: ClassVar[str]
    """`module:function`. It takes `Tokens` and the fields, and returns float [N]."""

    of_rollouts: ClassVar[bool] = False
    """Whether it always needs whole rollouts. Otherwise `Tokens` may hold parts of rollouts, without
    times."""

    name: str = ""
    """The name in the run file."""

    @property
    def whole_rollouts(self) -> bool:
        """Whether it needs all trained tokens of a rollout together."""
        return self.of_rollouts

    def problem(self, update: "UpdateSettings") -> str | None:  # noqa: ARG002
        """Why this part does not fit the rest of the update; None if it does."""
        return None

    @property
    def arguments(self) -> dict[str, Any]:
        """The function's arguments besides the tokens."""
        return self.model_dump(exclude={"name"})


class LossSettings(NamedPart):
    """A loss per token. It is not normalised, and its gradient flows through `Tokens.logprobs_N`."""

    def _needs_a_ratio(self, update: "UpdateSettings") -> str | None:
        if update.proximal == "current":
            return (
                f"{self.name} depends on the ratio to the proximal policy, which is 1 everywhere with "
                "proximal = 'current'; this leaves loss = 'reinforce': name that, or another proximal policy"
            )
        return None


class PpoLoss(LossSettings):
    """PPO's clipped surrogate."""

    function = "trainers.losses.clipped:ppo"

    clip_low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the ratio to the proximal policy may fall before the gradient stops."""
    clip_high: float = Field(0.2, ge=0)
    """How far above 1 it may rise."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if neither the loss nor a correction has the ratio to the policy that sampled."""
        if update.proximal == "current" and not any(each.weighs for each in update.weights):
            return (
                f"{self.name} with proximal = 'current' has the ratio 1 everywhere, and no correction "
                "weights by pi/mu, so off-policy tokens are trained as if on-policy: add tis, mis or icepop, "
                "or set loss = 'reinforce' if this is intended"
            )
        return None


class Dapo(PpoLoss):
    """PPO's loss with DAPO's wider upper range. DAPO's mean over tokens and its refill of groups are
    separate settings.
    """

    clip_high: float = Field(0.28, ge=0)
    """How far above 1 it may rise."""


class DecoupledPpo(PpoLoss):
    """PPO clipped against a proximal policy other than the one that sampled, and weighted by a correction.

    AReaL takes several steps on a batch and clips against the policy before the first of them: set
    algorithm = "ppo" with proximal = "recompute" for this.
    """

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error without a proximal policy of its own, a ratio to it, or a correction."""
        if update.proximal == "behaviour":
            return (
                "decoupled_ppo separates the proximal from the behaviour policy; with proximal = 'behaviour' "
                "it equals loss = 'ppo': name that, or another proximal policy"
            )
        if reason := self._needs_a_ratio(update):
            return reason
        if not any(each.weighs for each in update.weights):
            return (
                "decoupled_ppo without a weight pi_prox/mu trains off-policy tokens as if on-policy: add "
                "tis, mis or icepop"
            )
        return None


class Gspo(LossSettings):
    """One ratio per rollout, the geometric mean of its tokens' ratios. Meant for normalisation =
    "rollout".
    """

    function = "trainers.losses.clipped:gspo"
    of_rollouts = True

    clip_low: float = Field(3e-4, ge=0, le=1)
    """How far below 1 a rollout's ratio may fall before its gradient stops. A mean over many tokens moves
    little, so the range is small."""
    clip_high: float = Field(4e-4, ge=0)
    """How far above 1 it may rise."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if the ratio is 1 everywhere."""
        return self._needs_a_ratio(update)


class Cispo(LossSettings):
    """The ratio as a truncated weight: no token loses its gradient."""

    function = "trainers.losses.clipped:cispo"

    cap: float = Field(5.0, gt=0)
    """Largest weight of a token (1 + epsilon_high of the paper)."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if the ratio is 1 everywhere."""
        return self._needs_a_ratio(update)


class MinPro(LossSettings):
    """A token's ratio times the smallest one before it, instead of the product of all of them."""

    function = "trainers.losses.clipped:minpro"
    of_rollouts = True

    clip_low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the weight may fall."""
    clip_high: float = Field(0.28, ge=0)
    """How far above 1 it may rise."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if the ratio is 1 everywhere, or if a correction also weights whole rollouts."""
        if twice := [each.name for each in update.weights if each.whole_rollouts]:
            return (
                f"minpro already weights by the ratio of the rollout so far, and {twice[0]} would weight or "
                "mask rollouts by such a ratio a second time: choose corrections that act on tokens"
            )
        return self._needs_a_ratio(update)


class DppoTv(LossSettings):
    """A trust region on probabilities instead of ratios."""

    function = "trainers.losses.clipped:dppo_tv"

    mask_low: float = Field(0.2, ge=0, le=1)
    """How far a token's probability may have fallen before a further decrease has no gradient."""
    mask_high: float = Field(0.2, ge=0, le=1)
    """How far it may have risen before a further increase has no gradient."""
    kl: float = Field(0.0, ge=0)
    """Weight of (log rho)^2, which pulls back to the policy that sampled; prime-rl has 1e-3."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error with a proximal policy other than the one that sampled."""
        if update.proximal != "behaviour":
            return "dppo_tv compares with the policy that sampled (pi - mu): set proximal = 'behaviour'"
        return None


class Reinforce(LossSettings):
    """The plain policy gradient."""

    function = "trainers.losses.clipped:reinforce"

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error unless proximal = 'current', with which corrections weight by the whole ratio."""
        if update.proximal != "current":
            return (
                "reinforce has no ratio, so only corrections weight off-policy tokens, by pi_prox/mu: set "
                "proximal = 'current', which makes this the whole ratio pi/mu"
            )
        return None
