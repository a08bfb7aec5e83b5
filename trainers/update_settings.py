"""Settings of one optimizer step and of the proximal policies. Checking a configuration does not need
torch.
"""

from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError
from harnessgym.registry import Kind, load, names
from harnessgym.run_config.run import RunConfig
from trainers.corrections.settings import CorrectionSettings, Tis
from trainers.losses.normalisation import Normalisation
from trainers.losses.settings import Dapo, LossSettings, NamedPart
from trainers.reference_settings import DistillationSettings, KlSettings, check_references


class Ewma(Config):
    """A moving average of past versions' weights (PPO-EWMA, revised: arXiv 2605.12070, known from a third
    party's note).
    """

    name: Literal["ewma"] = "ewma"
    window: int | None = Field(None, gt=0)
    """W, in versions: each counts W / (W + 2) of what the next one does. `max_staleness` if not given."""
    reset_below: float = Field(0.9, ge=0, le=1)
    """When corrections leave a smaller share of the tokens than this, the average begins again from the
    weights that the step makes. 0: never."""

    @property
    def beta(self) -> float:
        """Weight of a version relative to the one after it."""
        window = self.window or 0
        return window / (window + 2)


P = TypeVar("P", bound=NamedPart)


class EssRule(Config):
    """Reduces the learning rate with the effective sample size of the rollouts' importance weights (VCPO)."""

    name: Literal["ess"] = "ess"
    target: float = Field(1.0, gt=0, le=1)
    """rho_0: the effective share of the rollouts that deserves the whole rate. VCPO's script for many
    turns has 0.55."""
    power: float = Field(0.5, gt=0)
    """lr (min(1, rho / rho_0))^power: 0.5 is the square root rule, 1 the linear one."""


class UpdateSettings(BaseModel):
    """How a batch changes the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(4e-4, gt=0)
    """Learning rate of this step; fits the shipped policy. Pretrained models want about 1e-6."""
    loss: SerializeAsAny[LossSettings] = Dapo(name="dapo")
    """Registered loss, `module:Class`, or a table of that `name` and its settings."""
    proximal: Literal["behaviour", "current", "recompute", "snapshot", "loglinear"] | Ewma = "behaviour"
    """The policy that ratios are clipped against. Corrections act on its ratio to the policy that
    sampled. behaviour: the one that sampled (PPO, which leaves no importance weight). current:
    the one the step starts from (which never clips; staleness is weighted instead). recompute: the one
    that the first of several steps on a batch starts from, of algorithm = "ppo" (AReaL). snapshot: for
    each token the version that sampled it, scored again by the trainer. ewma: a moving average of past
    versions, or a table with its settings. loglinear: between the one that sampled and the current one, by
    staleness, without a forward pass."""
    corrections: tuple[SerializeAsAny[CorrectionSettings], ...] | None = None
    """Registered corrections, `module:Class`, or tables of a `name` and settings. If not given, tis,
    unless the proximal policy is the one that sampled: that leaves nothing to correct."""
    lr_rule: Literal["constant"] | EssRule = "constant"
    """ess: a smaller rate when a few rollouts have most of the batch's weight; or a table with its
    settings."""
    baseline: Literal["none", "minimum_variance"] = "none"
    """minimum_variance: the baseline that is subtracted from rewards is chosen per batch for the least
    variance of the weighted gradient. It costs a backward pass per rollout and two more copies of the
    gradient."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit: both moments take one byte each instead of four (bitsandbytes, arXiv 2110.02861); those of
    tensors below 4,096 weights stay float32. In one process."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients longer than this are scaled down to it."""
    normalisation: Normalisation = "token"
    """The loss is a mean over trained tokens ("token"), over rollouts, each the mean of its tokens
    ("rollout"), or, with { name = "constant", length = 4096 }, over rollouts, each the sum of its tokens /
    length."""
    temperature: float = Field(1.0, gt=0, json_schema_extra={"set_by": "sampling.temperature"})
    """Sampling temperature of the rows; logprobs are compared at it."""
    micro_batch_tokens: int = Field(16_384, gt=0)
    """Tokens per forward pass; shared prefixes count once. Changes only memory and rounding."""

    epochs: int = Field(1, gt=0)
    """Passes over each batch. The ledger counts it as trained once."""
    mini_batches: int = Field(1, gt=0)
    """Parts into which the rollouts of a batch are split, at random in each epoch; each part is an optimizer
    step."""
    kl: KlSettings | None = None
    """A penalty on the divergence from a reference policy; none if not given."""
    distillation: DistillationSettings | None = None
    """A teacher that says how likely the sampled tokens are; none if not given."""

    @property
    def several(self) -> bool:
        """Whether a batch is more than one optimizer step."""
        return self.epochs * self.mini_batches > 1

    @property
    def weights(self) -> tuple[CorrectionSettings, ...]:
        """The corrections that apply."""
        if self.corrections is not None:
            return self.corrections
        return () if self.proximal == "behaviour" else (Tis(name="tis"),)

    @property
    def whole_rollouts(self) -> bool:
        """Whether all rows of a rollout are needed together."""
        return any(part.whole_rollouts for part in (self.loss, *self.weights))

    @field_validator("loss", mode="before")
    @classmethod
    def _loss(cls, raw: Any) -> Any:
        return _named("loss", LossSettings, raw)

    @field_validator("corrections", mode="before")
    @classmethod
    def _corrections(cls, raw: Any) -> Any:
        if isinstance(raw, str | Mapping):
            raise ConfigError('Corrections are a list: ["tis"], or tables [{ name = "icepop", low = 0.5 }].')
        return raw if raw is None else tuple(_named("correction", CorrectionSettings, each) for each in raw)

    @field_validator("normalisation", mode="before")
    @classmethod
    def _mean(cls, raw: Any) -> Any:
        if raw in ("constant", {"name": "constant"}):
            raise ConfigError(
                'normalisation = "constant" needs a length: { name = "constant", length = 4096 }.'
            )
        return raw["name"] if raw in ({"name": "token"}, {"name": "rollout"}) else raw

    @field_validator("proximal", "lr_rule", mode="before")
    @classmethod
    def _by_name(cls, raw: Any) -> Any:
        """Replace a name that has settings by a table with its defaults, and a table with only a name by the
        name.
        """
        if raw in ("ewma", "ess"):
            return {"name": raw}
        if isinstance(raw, Mapping) and set(raw) == {"name"} and raw["name"] not in ("ewma", "ess"):
            return raw["name"]
        return raw

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        ratios = [each.name for each in self.weights if each.weighs]
        if len(ratios) > 1:
            raise ValueError(
                f"{' and '.join(ratios)} both weigh by pi_prox/mu, and together by its square: keep one of "
                "them"
            )
        for name, times in Counter(each.name for each in self.weights).items():
            if times > 1:
                raise ValueError(f"corrections has {name} {times} times: keep one of them")
        for part in (self.loss, *self.weights):
            if reason := part.problem(self):
                raise ValueError(reason)
        if self.lr_rule != "constant" and self.proximal != "behaviour" and not ratios:
            raise ValueError(
                "lr_rule = 'ess' depends on importance weights in the gradient, and there are none: add "
                "tis, mis or icepop"
            )
        if self.baseline == "minimum_variance" and self.loss.name != "reinforce":
            raise ValueError(
                "baseline = 'minimum_variance' is derived for the gradient sum w (R - b) grad log pi, which "
                f"{self.loss.name} does not have: set loss = 'reinforce'"
            )
        return self

    @model_validator(mode="after")
    def _of_one_batch(self) -> Self:
        if self.baseline == "minimum_variance" and (self.kl or self.distillation or self.several):
            raise ValueError(
                "baseline = 'minimum_variance' is derived for one step from rewards alone: leave kl, "
                "distillation, epochs and mini_batches out"
            )
        if self.several and self.proximal not in ("behaviour", "recompute", "snapshot"):
            name = self.proximal if isinstance(self.proximal, str) else self.proximal.name
            raise ValueError(
                "with several updates on a batch the proximal policy must stay fixed, but proximal = "
                f"{name!r} moves with each update: set proximal = 'behaviour', 'recompute' or 'snapshot'"
            )
        return self

    @model_validator(mode="after")
    def _average_resets(self) -> Self:
        if (
            isinstance(self.proximal, Ewma)
            and self.proximal.reset_below
            and not any(each.masks for each in self.weights)
        ):
            raise ValueError(
                "proximal = 'ewma' resets when corrections mask too many tokens, and none of them masks: "
                "add mis or icepop, or set reset_below = 0"
            )
        return self


def _named(kind: Kind, base: type[P], raw: Any) -> P:
    """A loss or correction from its name or a table. Raises `ConfigError`."""
    if isinstance(raw, base):
        return raw
    table = {"name": raw} if isinstance(raw, str) else dict(raw) if isinstance(raw, Mapping) else {}
    if not isinstance(table.get("name"), str):
        raise ConfigError(f"A {kind} is a name, or a table with a name; got {raw!r}.")
    named_class = load(kind, table["name"])
    if not (isinstance(named_class, type) and issubclass(named_class, base)):
        raise ConfigError(
            f"{table['name']!r} is not a {kind}: it must be a subclass of {base.__module__}:{base.__name__}."
        )
    return validate(named_class, table, f"{kind} {table['name']!r}")


def _fits_run(settings: UpdateSettings, named: str, config: RunConfig, where: str) -> None:
    """Raises `ConfigError` for a proximal policy, or several steps on a batch, that are impossible or
    pointless with the rest of the run.
    """
    trainer = config.trainer
    if named == "recompute" and not settings.several:
        raise ConfigError(
            f"{where}: with one update on a batch proximal = 'recompute' is 'current': name that, or raise "
            "epochs or mini_batches."
        )
    if settings.several and trainer.stream:
        raise ConfigError(
            f"{where}: several updates need the whole batch, and with trainer.stream it is never held whole: "
            "set stream = false (and leave trainer.periodic out), or leave epochs and mini_batches out."
        )
    if named in ("snapshot", "ewma", "loglinear") and trainer.max_staleness == 0:
        raise ConfigError(
            f"{where}: with max_staleness = 0 every token was sampled by the policy that the step starts "
            f"from, so proximal = {named!r} is 'current': name that, or raise max_staleness."
        )
    if trainer.lora.on and named == "ewma":
        raise ConfigError(
            f"{where}: proximal = 'ewma' averages weights, and averages of A and of B do not make the "
            "average of B A: choose another proximal policy, or leave trainer.lora out."
        )
    kept = config.trainer.publish.keep
    if named == "snapshot" and kept and kept <= trainer.max_staleness:
        raise ConfigError(
            f"{where}: proximal = 'snapshot' reads versions up to max_staleness = {trainer.max_staleness} "
            f"old, and the newest {kept} stay on disk: set trainer.publish.keep to "
            f"{trainer.max_staleness + 1} at least, or 0."
        )


def _check_libraries(settings: UpdateSettings, config: RunConfig, where: str) -> None:
    """Raises `ConfigError` if adapters or the optimizer need a library that is not there, or cannot do what
    the run asks.
    """
    if config.trainer.lora.on and find_spec("peft") is None:
        raise ConfigError(
            "trainer.lora needs peft, which is not installed: pip install 'harnessgym-rl[lora]'."
        )
    if settings.optimizer != "adamw_8bit":
        return
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"{where}: optimizer = 'adamw_8bit' needs bitsandbytes, which is not installed: pip install "
            "'harnessgym-rl[optimizer]'."
        )
    if config.trainer.processes > 1:
        raise ConfigError(
            f"{where}: optimizer = 'adamw_8bit' does not know shards, which {config.trainer.processes} "
            "processes have: set trainer.processes = 1, or leave it out (each shard has its part of the "
            "moments)."
        )


def _check_baseline(config: RunConfig, where: str) -> None:
    """Raises `ConfigError` if baseline = "minimum_variance" does not go with the rest of the run."""
    trainer = config.trainer
    if trainer.advantage in names("advantage") and trainer.advantage != "reward":
        raise ConfigError(
            f"{where}: baseline = 'minimum_variance' chooses what is subtracted from rewards, and "
            f"trainer.advantage = {trainer.advantage!r} has subtracted something already: set "
            "trainer.advantage = 'reward'."
        )
    if config.filter.steps_kept < 1:
        raise ConfigError(
            f"{where}: baseline = 'minimum_variance' takes one reward for all tokens of a rollout, and "
            f"filter.steps_kept = {config.filter.steps_kept} gives those of some turns none: set "
            "filter.steps_kept = 1."
        )
    if trainer.processes > 1:
        raise ConfigError(
            f"{where}: baseline = 'minimum_variance' needs the gradient of each rollout, and "
            f"{trainer.processes} processes add theirs up: set trainer.processes = 1."
        )


def settings_of(config: RunConfig, where: str = "[trainer.update]") -> UpdateSettings:
    """The update settings of a run's (first) policy, completed from other sections. Raises `ConfigError`,
    with the reason.
    """
    trainer = config.trainer
    settings = validate(UpdateSettings, dict(trainer.update), where)
    named = settings.proximal if isinstance(settings.proximal, str) else settings.proximal.name
    _fits_run(settings, named, config, where)
    check_references(settings.kl, settings.distillation, config, where)
    _check_libraries(settings, config, where)
    if settings.baseline == "minimum_variance":
        _check_baseline(config, where)
    sampled_at = config.sampling.temperature
    if trainer.update.get("temperature", sampled_at) != sampled_at:
        raise ConfigError(
            f"{where}: temperature = {settings.temperature} is not the one that rollouts are sampled at, and "
            "at which log-probabilities are compared: leave it out, or set sampling.temperature, which is "
            f"{sampled_at}."
        )
    filled: dict[str, Any] = {"temperature": sampled_at}
    if isinstance(settings.proximal, Ewma) and settings.proximal.window is None:
        filled["proximal"] = settings.proximal.model_copy(update={"window": trainer.max_staleness})
    return settings.model_copy(update=filled)
