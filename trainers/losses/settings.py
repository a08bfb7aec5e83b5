"""Which losses there are, and their settings. Nothing here needs torch; a loss itself is loaded by name when
it is computed.

A loss of your own is a subclass of `LossSettings`, named as `module:Class`.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harnessgym.config import Config

if TYPE_CHECKING:
    from trainers.update_settings import UpdateSettings


class NamedPart(Config):
    """What a loss and a correction have in common: a function, by name, whose settings are the fields."""

    function: ClassVar[str]
    """`module:function` from `Tokens`, and the fields, to float [N]."""

    of_rollouts: ClassVar[bool] = False
    """Whether it looks at whole rollouts, whatever its settings. Else `Tokens` may hold parts of them, and
    no times."""

    name: str = ""
    """As it was asked for."""

    @property
    def whole_rollouts(self) -> bool:
        """Whether it must see all trained tokens of a rollout together."""
        return self.of_rollouts

    def problem(self, update: "UpdateSettings") -> str | None:  # noqa: ARG002
        """Why these settings make no sense together, if they do not."""
        return None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the function takes besides the tokens."""
        return self.model_dump(exclude={"name"})


class LossSettings(NamedPart):
    """A loss per token. It divides by nothing, and its gradient flows through `Tokens.logprobs_N`."""

    def _needs_a_ratio(self, update: "UpdateSettings") -> str | None:
        if update.proximal == "current":
            return (
                f"{self.name} is made of the ratio to the proximal policy, which is 1 everywhere with "
                "proximal = 'current'; "
                "what is left is loss = 'reinforce': name that, or another proximal policy"
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
        """With the current policy as the proximal one only a correction brings in the ratio to the one
        that sampled.
        """
        if update.proximal == "current" and not any(each.weighs for each in update.weights):
            return (
                f"{self.name} with proximal = 'current' has the ratio 1 everywhere, and no correction here "
                "weighs by pi/mu, so "
                "off-policy tokens are trained as if on-policy: name tis, mis or icepop, or loss = "
                "'reinforce' if that is meant"
            )
        return None


class Dapo(PpoLoss):
    """The same with DAPO's wider upper range. Its mean over tokens and its refill of groups are settings
    of their own.
    """

    clip_high: float = Field(0.28, ge=0)
    """How far above 1 it may rise."""


class DecoupledPpo(PpoLoss):
    """PPO clipped against a proximal policy that is not the one that sampled, weighted by a correction.

    AReaL's own takes several steps on a batch and clips against the policy that the first of them starts
    from: that is algorithm = "ppo" with proximal = "recompute".
    """

    def problem(self, update: "UpdateSettings") -> str | None:
        """Without another proximal policy, without a ratio to it, or without weights, it is not decoupled."""
        if update.proximal == "behaviour":
            return "decoupled_ppo tells the proximal from the behaviour policy: with proximal = 'behaviour' it is loss = 'ppo'"
        if reason := self._needs_a_ratio(update):
            return reason
        if not any(each.weighs for each in update.weights):
            return "decoupled_ppo without a weight pi_prox/mu trains off-policy tokens as if on-policy: name tis, mis or icepop"
        return None


class Gspo(LossSettings):
    """One ratio for a rollout, the geometric mean of its tokens'. Meant for normalisation = "rollout"."""

    function = "trainers.losses.clipped:gspo"
    of_rollouts = True

    clip_low: float = Field(3e-4, ge=0, le=1)
    """How far below 1 a rollout's ratio may fall before its gradient stops. A mean over many tokens moves
    little."""
    clip_high: float = Field(4e-4, ge=0)
    """How far above 1 it may rise."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """It lives on its ratio."""
        return self._needs_a_ratio(update)


class Cispo(LossSettings):
    """The ratio as a truncated weight: no token loses its gradient."""

    function = "trainers.losses.score:cispo"

    cap: float = Field(5.0, gt=0)
    """Largest weight of a token (1 + epsilon_high of the paper)."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """It lives on its ratio."""
        return self._needs_a_ratio(update)


class MinPro(LossSettings):
    """A token's ratio times the least one before it, in place of the product of all of them."""

    function = "trainers.losses.score:minpro"
    of_rollouts = True

    clip_low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the weight may fall."""
    clip_high: float = Field(0.28, ge=0)
    """How far above 1 it may rise."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """It lives on its ratio, and does what weights of whole rollouts do."""
        if twice := [each.name for each in update.weights if each.whole_rollouts]:
            return (
                f"minpro stands in for the ratio of a rollout so far, and {twice[0]} would weigh or mask "
                "rollouts by such a "
                "ratio a second time: take corrections that act on tokens"
            )
        return self._needs_a_ratio(update)


class DppoTv(LossSettings):
    """A trust region on probabilities in place of ratios."""

    function = "trainers.losses.clipped:dppo_tv"

    mask_low: float = Field(0.2, ge=0, le=1)
    """How far a token's probability may have fallen before it is left to rise again only."""
    mask_high: float = Field(0.2, ge=0, le=1)
    """How far it may have risen."""
    kl: float = Field(0.0, ge=0)
    """Weight of (log rho)^2, which pulls back to the policy that sampled; prime-rl has 1e-3."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """It knows no other proximal policy than the one that sampled."""
        if update.proximal != "behaviour":
            return "dppo_tv keeps to the policy that sampled, pi - mu: set proximal = 'behaviour'"
        return None


class Reinforce(LossSettings):
    """The plain policy gradient."""

    function = "trainers.losses.score:reinforce"

    def problem(self, update: "UpdateSettings") -> str | None:
        """It leaves all weighing to corrections."""
        if update.proximal != "current":
            return (
                "reinforce has no ratio, so only corrections can weigh what another policy sampled, by "
                "pi_prox/mu: set "
                "proximal = 'current', for the whole ratio pi/mu"
            )
        return None
