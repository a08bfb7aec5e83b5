"""What a simulation is told. One section per part of a run, as in `harnessgym.run_config.run`."""

from typing import Literal

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.scheduling.consumption import WhenStale
from harnessgym.simulation.distributions import Distribution


class EnginesSection(Config):
    """Engine workers, each decoding its calls together.

    With n calls a decoding step takes 1/alone + (n-1)/most seconds, so that one call gets `tokens_per_s` and
    a full worker approaches `most_tokens_per_s`.
    """

    workers: int = Field(8, gt=0)
    """W."""
    tokens_per_s: float = Field(60.0, gt=0)
    """Of a call that is alone."""
    most_tokens_per_s: float = Field(2_000.0, gt=0)
    """What a worker's rate approaches as it gets more calls."""
    max_batch: int = Field(128, gt=0)
    """Calls decoded together; more wait at the worker."""
    prefill_cost: float = Field(0.005, ge=0)
    """Reading a prompt token that is not in the worker's cache, in decoded tokens."""

    @model_validator(mode="after")
    def _more_calls_are_no_slower(self) -> "EnginesSection":
        if self.most_tokens_per_s < self.tokens_per_s:
            raise ValueError(
                f"a full worker ({self.most_tokens_per_s} tokens/s) is slower than one call "
                f"({self.tokens_per_s})"
            )
        return self


class WorkSection(Config):
    """What a rollout does: model calls in turn with its environment, then a grade."""

    turns: Distribution = Distribution(kind="lognormal", mean=8, shape=0.5, most=40)
    """Model calls of a rollout; at least one."""
    tokens: Distribution = Distribution(kind="lognormal", mean=300, shape=1.0, most=8_192)
    """Sampled tokens of a call."""
    read: Distribution = Distribution(kind="constant", mean=400)
    """Prompt tokens that a turn adds."""
    environment_s: Distribution = Distribution(kind="lognormal", mean=3.0, shape=1.0, most=300)
    """Seconds of the environment after a call."""
    grading_s: Distribution = Distribution(kind="lognormal", mean=5.0, shape=0.5)
    """Seconds of a grader."""
    environments: int = Field(256, gt=0)
    """Sandboxes at one time: rollouts that run."""
    graders: int = Field(64, gt=0)
    """Rollouts that are graded at one time."""
    sampling: Literal["batch", "task", "rollout"] = "rollout"
    """What is begun when an environment is free: the next batch once all of the last is done, the next
    group once a whole group's environments are free, or the next rollout."""


class SimulatedTrainerSection(Config):
    """The trainer's steps and what it consumes."""

    steps: int = Field(40, gt=0)
    """Batches to consume."""
    warmup: int = Field(8, ge=0)
    """First steps that no figure counts."""
    groups_per_step: int = Field(32, gt=0)
    """B."""
    group_size: int = Field(8, gt=0)
    """G."""
    step_s: Distribution = Distribution(kind="constant", mean=30.0)
    """T: seconds of a step."""
    micro_batches: int = Field(1, gt=0)
    """Parts of a batch that are worked on as they come, for one step of the optimizer."""
    max_staleness: int = Field(4, ge=0)
    """η, at submission and at consumption."""
    over_launch: float | None = Field(None, ge=1)
    """Batches' worth of groups that may be submitted and not consumed; η + 1 if not given."""
    consumption: WhenStale = "wait"
    """Take batches in order of submission, or any complete groups and drop or requeue what is too stale."""
    reuse: int = Field(0, ge=0)
    """How many further times a group may be trained, while it is within η."""
    reuse_share: float = Field(0.5, gt=0, lt=1)
    """With reuse: the part of a batch that may be such groups."""
    alone: bool = False
    """Whether engines stand still while the trainer works (they share its machines); calls in flight go on
    afterwards."""

    @property
    def replayed(self) -> int:
        """Places of a batch that may go to groups which were trained before."""
        return int(self.reuse_share * self.groups_per_step) if self.reuse else 0

    @model_validator(mode="after")
    def _groups_may_come_again(self) -> "SimulatedTrainerSection":
        if self.reuse and self.max_staleness == 0:
            raise ValueError(
                "reuse trains groups again under later versions, and η = 0 trains none: raise max_staleness"
            )
        if self.reuse and not self.replayed:
            raise ValueError(
                f"{self.reuse_share} of {self.groups_per_step} groups is no group: raise reuse_share, or "
                "leave reuse out"
            )
        if self.reuse and self.micro_batches > 1:
            raise ValueError(
                "what is trained again is settled for a whole batch: with reuse ask for 1 micro-batch"
            )
        return self

    @model_validator(mode="after")
    def _parts_are_equal(self) -> "SimulatedTrainerSection":
        if self.groups_per_step % self.micro_batches:
            raise ValueError(
                f"{self.groups_per_step} groups cannot be worked on in {self.micro_batches} equal parts"
            )
        if self.alone and self.micro_batches > 1:
            raise ValueError(
                "engines that stand still for a part of a batch never finish the rest: ask for 1 micro-batch"
            )
        if self.warmup >= self.steps:
            raise ValueError(f"all {self.steps} steps are warm-up: give more steps, or a smaller warmup")
        return self


class UpdatesSection(Config):
    """How workers get new weights."""

    mode: Literal["rolling", "global", "between"] = "rolling"
    """One of f workers at a time; all at once, serving again when the last is done; or all at once when
    nothing runs."""
    at_once: int | None = Field(None, gt=0)
    """f; a quarter of the workers if not given."""
    transfer_s: Distribution = Distribution(kind="lognormal", mean=10.0, shape=0.3)
    """Seconds to fetch a version: before the drain if rolling, during the pause if not."""
    install_s: Distribution = Distribution(kind="lognormal", mean=1.0, shape=0.3)
    """Seconds out of service to install and check it."""
    drain_s: float = Field(5.0, ge=0)
    """Seconds that calls in flight may finish in; then they are re-prefilled under the new weights."""
    lease_ttl_s: float = Field(30.0, gt=0)
    """Seconds after which a dead worker's update lease is free."""


class FailuresSection(Config):
    """What breaks. Times between failures are exponential."""

    worker_s: float = Field(0.0, ge=0)
    """Mean seconds between two deaths of a worker, anywhere in the fleet; 0: never."""
    worker_restart_s: float = Field(60.0, gt=0)
    """Until it serves again."""
    rollout: float = Field(0.0, ge=0, lt=1)
    """Probability that infrastructure ends an attempt at a rollout; it runs again."""
    trainer_s: float = Field(0.0, ge=0)
    """Mean seconds between two deaths of the trainer; 0: never."""
    trainer_restart_s: float = Field(30.0, gt=0)
    """Until it works again, on the batch it was at."""
    versions_lost: int = Field(0, ge=0)
    """Checkpoints that are gone when it comes back: as many versions are orphaned, and their batches
    trained again."""


class SimulationConfig(Config):
    """What `harnessgym simulate` reads."""

    name: str = "async"
    """What the report calls it."""
    seed: int = 0
    """Seeds the draws; equal seeds give equal draws in every arm."""
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
                "updates that wait until nothing runs never come while more than η + 1 batches may be "
                "launched"
            )
        return self

    @property
    def leases(self) -> int:
        """How many workers may update at one time, f."""
        return self.updates.at_once or max(1, self.engines.workers // 4)

    @property
    def batch(self) -> int:
        """Rollouts in a batch."""
        return self.trainer.groups_per_step * self.trainer.group_size
