"""Settings of a simulation, one section per part of a run, as in `harnessgym.run_config.run`."""

from typing import Literal

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.scheduling.consumption import WhenStale
from harnessgym.simulation.distributions import Distribution


class EnginesSection(Config):
    """Engine workers, each of which decodes its calls as one batch.

    With n calls a decoding step takes 1/alone + (n-1)/most seconds. So one call gets `tokens_per_s`, and a
    full worker approaches `most_tokens_per_s`.
    """

    workers: int = Field(8, gt=0)
    """W."""
    tokens_per_s: float = Field(60.0, gt=0)
    """Rate of a call that is alone on a worker."""
    most_tokens_per_s: float = Field(2_000.0, gt=0)
    """Rate that a worker approaches with more calls."""
    max_batch: int = Field(128, gt=0)
    """Most calls decoded together; further ones wait at the worker."""
    prefill_cost: float = Field(0.005, ge=0)
    """Cost of a prompt token that is not in the worker's cache, in decoded tokens."""

    @model_validator(mode="after")
    def _more_calls_are_no_slower(self) -> "EnginesSection":
        if self.most_tokens_per_s < self.tokens_per_s:
            raise ValueError(
                f"a full worker ({self.most_tokens_per_s} tokens/s) is slower than one call "
                f"({self.tokens_per_s})"
            )
        return self


class WorkSection(Config):
    """The work of a rollout: model calls alternate with its environment, then it is graded."""

    turns: Distribution = Distribution(kind="lognormal", mean=8, shape=0.5, most=40)
    """Model calls per rollout, at least one."""
    tokens: Distribution = Distribution(kind="lognormal", mean=300, shape=1.0, most=8_192)
    """Sampled tokens per call."""
    read: Distribution = Distribution(kind="constant", mean=400)
    """Prompt tokens that each turn adds."""
    environment_s: Distribution = Distribution(kind="lognormal", mean=3.0, shape=1.0, most=300)
    """Seconds of the environment after each call."""
    grading_s: Distribution = Distribution(kind="lognormal", mean=5.0, shape=0.5)
    """Seconds of grading per rollout."""
    environments: int = Field(256, gt=0)
    """Sandboxes, that is rollouts that run at one time."""
    graders: int = Field(64, gt=0)
    """Rollouts graded at one time."""
    sampling: Literal["batch", "task", "rollout"] = "rollout"
    """What begins when an environment is free. batch: the next batch, once the last one is done. task: the
    next group, once environments for all of it are free. rollout: the next rollout."""


class SimulatedTrainerSection(Config):
    """The trainer's steps and its consumption."""

    steps: int = Field(40, gt=0)
    """Batches to consume."""
    warmup: int = Field(8, ge=0)
    """First steps, which the figures leave out."""
    groups_per_step: int = Field(32, gt=0)
    """B."""
    group_size: int = Field(8, gt=0)
    """G."""
    step_s: Distribution = Distribution(kind="constant", mean=30.0)
    """T: seconds of a step."""
    micro_batches: int = Field(1, gt=0)
    """Parts of a batch that are trained as they complete, for one optimizer step."""
    max_staleness: int = Field(4, ge=0)
    """η, at submission and at consumption."""
    over_launch: float | None = Field(None, ge=1)
    """Batches' worth of groups that may be outstanding; η + 1 if not given."""
    consumption: WhenStale = "wait"
    """wait: batches in order of submission. drop, requeue: any complete groups; stale ones are given up."""
    reuse: int = Field(0, ge=0)
    """How many more times a group may be trained while it is within η."""
    reuse_share: float = Field(0.5, gt=0, lt=1)
    """With reuse: the largest share of replayed groups in a batch."""
    alone: bool = False
    """Whether engines stop while the trainer works, because they share its machines. Their calls continue
    afterwards."""

    @property
    def replayed(self) -> int:
        """Places of a batch that replayed groups may take."""
        return int(self.reuse_share * self.groups_per_step) if self.reuse else 0

    @model_validator(mode="after")
    def _groups_may_come_again(self) -> "SimulatedTrainerSection":
        if self.reuse and self.max_staleness == 0:
            raise ValueError(
                "reuse trains groups again under later versions, which η = 0 does not allow: raise "
                "max_staleness"
            )
        if self.reuse and not self.replayed:
            raise ValueError(
                f"{self.reuse_share} of {self.groups_per_step} groups is less than one: raise reuse_share, "
                "or leave reuse out"
            )
        if self.reuse and self.micro_batches > 1:
            raise ValueError("replayed groups are chosen for a whole batch: with reuse set micro_batches = 1")
        return self

    @model_validator(mode="after")
    def _parts_are_equal(self) -> "SimulatedTrainerSection":
        if self.groups_per_step % self.micro_batches:
            raise ValueError(
                f"{self.groups_per_step} groups cannot be split into {self.micro_batches} equal micro-batches"
            )
        if self.alone and self.micro_batches > 1:
            raise ValueError(
                "with alone = true engines stop during a micro-batch and never finish the rest: set "
                "micro_batches = 1"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"all {self.steps} steps are warm-up: give more steps, or a smaller warmup")
        return self


class UpdatesSection(Config):
    """How workers get new weights."""

    mode: Literal["rolling", "global", "between"] = "rolling"
    """rolling: f workers at a time. global: all at once, serving again when the last is done. between: all at
    once when nothing runs."""
    at_once: int | None = Field(None, gt=0)
    """f. Defaults to a quarter of the workers."""
    transfer_s: Distribution = Distribution(kind="lognormal", mean=10.0, shape=0.3)
    """Seconds to fetch a version: before the drain if rolling, else during the pause."""
    install_s: Distribution = Distribution(kind="lognormal", mean=1.0, shape=0.3)
    """Seconds out of service to install and check a version."""
    drain_s: float = Field(5.0, ge=0)
    """Seconds in which calls in flight may finish; afterwards they are prefilled again under new weights."""
    lease_ttl_s: float = Field(30.0, gt=0)
    """Seconds after which a dead worker's update lease expires."""


class FailuresSection(Config):
    """Failures. Times between them are exponential."""

    worker_s: float = Field(0.0, ge=0)
    """Mean seconds between two worker deaths in the whole fleet; 0 means never."""
    worker_restart_s: float = Field(60.0, gt=0)
    """Seconds until a dead worker serves again."""
    rollout: float = Field(0.0, ge=0, lt=1)
    """Probability that infrastructure ends a rollout attempt, which then runs again."""
    trainer_s: float = Field(0.0, ge=0)
    """Mean seconds between two trainer deaths; 0 means never."""
    trainer_restart_s: float = Field(30.0, gt=0)
    """Seconds until the trainer works again, on the same batch."""
    versions_lost: int = Field(0, ge=0)
    """Checkpoints lost at each trainer death: that many versions are orphaned and their batches trained
    again."""


class SimulationConfig(Config):
    """The configuration of `harnessgym simulate`."""

    name: str = "async"
    """Name in the report."""
    seed: int = 0
    """Seed of the draws. Equal seeds give equal draws in every variant."""
    engines: EnginesSection = EnginesSection()
    work: WorkSection = WorkSection()
    trainer: SimulatedTrainerSection = SimulatedTrainerSection()
    updates: UpdatesSection = UpdatesSection()
    failures: FailuresSection = FailuresSection()

    @model_validator(mode="after")
    def _groups_fit(self) -> "SimulationConfig":
        if self.work.sampling == "task" and self.work.environments < self.trainer.group_size:
            raise ValueError(
                f"a group of {self.trainer.group_size} never fits into {self.work.environments} environments"
            )
        if (
            self.updates.mode == "between"
            and (self.trainer.over_launch or 0) > self.trainer.max_staleness + 1
        ):
            raise ValueError(
                "updates.mode = 'between' waits until nothing runs, which never happens if more than η + 1 "
                "batches may be launched"
            )
        return self

    @property
    def leases(self) -> int:
        """f: workers that may update at one time."""
        return self.updates.at_once or max(1, self.engines.workers // 4)

    @property
    def batch(self) -> int:
        """Rollouts in a batch."""
        return self.trainer.groups_per_step * self.trainer.group_size
