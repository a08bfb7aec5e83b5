"""Settings of the policies that the trained one is compared with: references of a KL term, and teachers.

Checking a configuration does not need torch.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harnessgym.config import Config
from harnessgym.errors import ConfigError, PolicyError
from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from trainers.policies.model_folder import read_config, token_difference

MOST_LIKELY = 20
"""Most tokens per position whose log-probabilities engines report, unless they are told otherwise."""


class StartReference(Config):
    """The policy that the run starts from; with adapters, the weights below them."""

    name: Literal["start"] = "start"


class AverageReference(Config):
    """A moving average of the trained weights, which starts as the start."""

    name: Literal["average"] = "average"
    decay: float = Field(0.99, ge=0, lt=1)
    """Share of the average that stays at each of its updates; the rest is the current weights. 0 replaces it
    by them."""
    every: int = Field(1, gt=0)
    """Steps from one update of the average to the next."""


class VersionReference(Config):
    """A version that another run has published, of a policy of the same architecture."""

    name: Literal["version"] = "version"
    run: Path
    """Folder of that run."""
    version: int = Field(ge=0)
    """Number of the version."""
    policy: str = ""
    """Name of its policy; that run's first one if not given."""


class ModelReference(Config):
    """A model folder, of any architecture, whose tokens have the same ids."""

    name: Literal["model"] = "model"
    path: Path
    """Hugging Face folder with weights and tokenizer."""


class EngineReference(Config):
    """A model that an engine of its own serves. The run publishes nothing to that engine."""

    name: Literal["engine"] = "engine"
    url: str
    """URL of vLLM or of `harnessgym engine`: http://host:port. Its tokenizer must be the policy's, which is
    not checked, and its greatest length at least one token more than that of the policy's engine."""
    requests: int = Field(8, gt=0)
    """Rows that it scores at one time."""
    timeout_s: float = Field(600.0, gt=0)
    """Longest time that it may take to score a row."""


def _by_name(raw: Any) -> Any:
    return {"name": raw} if isinstance(raw, str) else raw


KlReference = Annotated[
    StartReference | AverageReference | VersionReference | ModelReference | EngineReference,
    Field(discriminator="name"),
    BeforeValidator(_by_name),
]
TeacherReference = Annotated[
    VersionReference | ModelReference | EngineReference,
    Field(discriminator="name"),
    BeforeValidator(_by_name),
]


class KlSettings(Config):
    """A penalty on the KL divergence of the policy from a reference policy."""

    coefficient: float = Field(gt=0)
    """Factor of the penalty, per nat."""
    reference: KlReference = StartReference()
    """start, average, or a table: { name = "average", decay = 0.99, every = 1 }, { name = "version", run =
    "runs/mine", version = 12 }, { name = "model", path = "..." }, { name = "engine", url = "..." }."""
    use: Literal["loss", "reward"] = "loss"
    """loss: a term of every token's loss. reward: subtracted from the reward, by the log-probabilities with
    which the tokens were sampled: from the rollout's with algorithm = "grpo", token by token with "ppo"."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the divergence in the loss; "k3" if not given. In the reward it is k1. The gradient of k1
    is 0 in expectation, that of k2 is the divergence's own, that of k3 has little variance (Schulman
    2020)."""

    @model_validator(mode="after")
    def _of_rewards(self) -> Self:
        if self.use == "reward" and self.estimator not in (None, "k1"):
            raise ValueError(f'use = "reward" subtracts k1: leave estimator = "{self.estimator}" out')
        return self

    @property
    def in_loss(self) -> str:
        """The estimator in the loss."""
        return self.estimator or "k3"


class DistillationSettings(Config):
    """On-policy distillation: rollouts are the policy's own, and a teacher says how likely they are."""

    teacher: TeacherReference
    """A table: { name = "model", path = "..." }, { name = "version", run = "runs/mine", version = 12 }, or
    { name = "engine", url = "..." }."""
    coefficient: float = Field(1.0, gt=0)
    """Factor of the divergence KL(policy, teacher), per nat."""
    tokens: Literal["sampled", "full"] | Annotated[int, Field(gt=0)] = "sampled"
    """sampled: log(teacher) - log(policy) of each sampled token is its advantage, or part of it. full: the
    divergence over the whole vocabulary is a term of the loss; the teacher must be a model or a version. A
    number: the same over as many of the teacher's likeliest tokens, the rest counted as one."""
    rewards: bool = True
    """Whether the rewards' advantages count, too. false: the policy only learns from the teacher."""

    @property
    def in_loss(self) -> bool:
        """Whether it is a term of the loss; otherwise it is an advantage."""
        return self.tokens != "sampled"

    @property
    def most_likely(self) -> int:
        """How many of the teacher's likeliest tokens are compared; 0 for all, or for the sampled one."""
        return self.tokens if isinstance(self.tokens, int) else 0

    @model_validator(mode="after")
    def _reported(self) -> Self:
        if isinstance(self.teacher, EngineReference):
            if self.tokens == "full":
                raise ValueError(
                    "engines report no whole vocabulary: set tokens to a number up to "
                    f"{MOST_LIKELY}, or name the teacher's folder"
                )
            if self.most_likely > MOST_LIKELY:
                raise ValueError(f"engines report {MOST_LIKELY} tokens at most, and tokens is {self.tokens}")
        return self


def check_references(
    kl: KlSettings | None, distillation: DistillationSettings | None, config: RunConfig, where: str
) -> None:
    """Raises `ConfigError` if a reference or teacher is not there or does not fit the rest of the run."""
    if kl is not None:
        _check(kl.reference, config, f"{where}: kl.reference")
    if distillation is not None:
        _check(distillation.teacher, config, f"{where}: distillation.teacher")
    _check_rewards(kl, distillation, config, where)


def _check_rewards(
    kl: KlSettings | None, distillation: DistillationSettings | None, config: RunConfig, where: str
) -> None:
    """Raises `ConfigError` if what changes rewards or advantages does not go with other settings of them."""
    named = config.trainer.advantage
    in_reward = kl is not None and kl.use == "reward"
    in_advantage = distillation is not None and distillation.rewards and not distillation.in_loss
    if (in_reward or in_advantage) and hasattr(load("advantage", named), "over_batch"):
        raise ConfigError(
            f"{where}: trainer.advantage = {named!r} scales advantages over the batch, and with them what a "
            'reference adds: set kl.use = "loss" and distillation.tokens to "full" or a number, or choose '
            "another advantage."
        )
    if in_reward and named == "m_grpo":
        raise ConfigError(
            f"{where}: trainer.advantage = 'm_grpo' puts its rewards together from channels, and a penalty "
            'is in none of them: set kl.use = "loss".'
        )
    if distillation is not None and config.replay.success_pool:
        raise ConfigError(
            f"{where}: replay.success_pool completes groups without a signal, and with a teacher every group "
            "has one: leave it out."
        )
    if distillation is not None and config.policies and config.filter.zero_signal == "refill":
        raise ConfigError(
            f"{where}: with several policies filter.zero_signal = 'refill' gives up groups of equal rewards, "
            "which a teacher would train: leave it out."
        )


def _check(
    reference: StartReference | AverageReference | VersionReference | ModelReference | EngineReference,
    config: RunConfig,
    where: str,
) -> None:
    if isinstance(reference, AverageReference) and config.trainer.lora.on:
        raise ConfigError(
            f"{where} = 'average' averages weights, and averages of A and of B do not make the average of B "
            "A: take 'start', or leave trainer.lora out."
        )
    if isinstance(reference, EngineReference) and config.sampling.temperature != 1.0:
        raise ConfigError(
            f"{where}: engines score at temperature 1, and rollouts are sampled at "
            f"{config.sampling.temperature}: set sampling.temperature = 1, or name the model's folder."
        )
    if isinstance(reference, VersionReference):
        if not (reference.run / "run.json").is_file():
            raise ConfigError(f"{where}: {reference.run} is no folder of a run (run.json is missing).")
        versions = RunFolder(reference.run, reference.policy).versions
        if not (versions / f"v{reference.version:08d}").is_dir():
            raise ConfigError(
                f"{where}: {versions} has no version {reference.version}. Runs keep the newest only "
                "(trainer.publish.keep); a run's first policy needs no `policy`."
            )
    if isinstance(reference, ModelReference):
        try:
            read_config(reference.path)
            difference = token_difference(Path(config.policy.path), reference.path)
        except PolicyError as error:
            raise ConfigError(f"{where}: {error}") from error
        if difference:
            raise ConfigError(f"{where}: {reference.path} has other tokens than the policy: {difference}.")
