"""The corrections and their settings, without torch.

To add your own, subclass `CorrectionSettings` and name it as `module:Class`.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from trainers.losses.settings import NamedPart

if TYPE_CHECKING:
    from trainers.update_settings import UpdateSettings


class CorrectionSettings(NamedPart):
    """A weight per token. The weights of several corrections are multiplied. A weight of 0 masks the token
    and changes no denominator.
    """

    weighs: ClassVar[bool] = False
    """Whether it multiplies the gradient by the ratio pi_prox/mu; otherwise its weights are 0 and 1."""
    masks: ClassVar[bool] = True
    """Whether it may give 0."""

    def _nothing_to_correct(self, update: "UpdateSettings") -> str | None:
        if update.proximal == "behaviour":
            return (
                f"{self.name} corrects pi_prox/mu, which is 1 everywhere with proximal = 'behaviour' (the "
                "loss then has the whole ratio pi/mu): leave it out, or set proximal"
            )
        return None


class _Ratio(CorrectionSettings):
    weighs = True

    level: Literal["token", "sequence"] = "token"
    """token: each token's own ratio. sequence: the product over all trained tokens of the rollout."""

    @property
    def whole_rollouts(self) -> bool:
        """Whether it needs all trained tokens of a rollout together."""
        return self.level == "sequence"

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if proximal = 'behaviour', where the ratio is 1."""
        return self._nothing_to_correct(update)


class Tis(_Ratio):
    """Truncated importance sampling."""

    masks = False
    function = "trainers.corrections.importance_sampling:tis"

    cap: float = Field(2.0, gt=0)
    """Largest weight."""


class Mis(_Ratio):
    """Masked importance sampling."""

    function = "trainers.corrections.importance_sampling:mis"

    cap: float = Field(3.0, gt=0)
    """Largest weight that is kept."""


class IcePop(_Ratio):
    """Masked importance sampling with a floor: masks tokens on which the two policies disagree in either
    direction.
    """

    function = "trainers.corrections.importance_sampling:icepop"

    low: float = Field(0.5, ge=0)
    """Smallest weight that is kept."""
    high: float = Field(5.0, gt=0)
    """Largest."""

    @model_validator(mode="after")
    def _band(self) -> "IcePop":
        if not self.low < self.high:
            raise ValueError(f"the band is empty: low {self.low} is not below high {self.high}")
        return self


class Geometric(CorrectionSettings):
    """Masks rollouts whose mean ratio is outside of a narrow band."""

    function = "trainers.corrections.masks:geometric"
    of_rollouts = True

    low: float = Field(0.99, ge=0)
    """Smallest mean ratio that is kept."""
    high: float = Field(1.01, gt=0)
    """Largest."""
    against: Literal["proximal", "current"] = "proximal"
    """The policy whose ratio to the sampling policy is judged: the proximal or the current one."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error if the ratio is 1 everywhere."""
        if self.against == "proximal" and (reason := self._nothing_to_correct(update)):
            return f"{reason}, or give it against = 'current'"
        return None

    @model_validator(mode="after")
    def _band(self) -> "Geometric":
        if not self.low < self.high:
            raise ValueError(f"the band is empty: low {self.low} is not below high {self.high}")
        return self


class Opsm(CorrectionSettings):
    """Masks tokens with negative advantages in rollouts that the current policy has already moved away
    from.
    """

    function = "trainers.corrections.masks:opsm"
    of_rollouts = True

    threshold: float = Field(0.5, gt=0)
    """Largest mean difference of log-probabilities that is kept, nats per token."""

    def problem(self, update: "UpdateSettings") -> str | None:
        """The error with a baseline, which settles advantages only after masking."""
        if update.baseline != "none":
            return (
                "opsm masks by the sign of the advantage, which is not known before the baseline is "
                "computed: leave one of them out"
            )
        return None
