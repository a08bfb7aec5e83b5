"""The policies that the trained one is compared with: the references of KL terms, and teachers.

`references/` has the kinds: other weights of the same policy, a model of its own, an engine. In the trainer
every process has one, and all processes call its methods together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harnessgym.run_config.run import RunConfig
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.policy import Policy
from trainers.reference_settings import (
    AverageReference,
    EngineReference,
    ModelReference,
    StartReference,
    VersionReference,
)
from trainers.scoring import TopTokens
from trainers.update_settings import UpdateSettings
from trainers.world import World


class Reference(Protocol):
    """A policy that scores tokens and is not trained."""

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of the trained tokens of each row, float32 [T], at the temperature of the update; 0
        elsewhere.
        """
        ...

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """The `count` likeliest tokens at the trained positions of each row, of those with ids below
        `vocabulary`.
        """
        ...

    def stepped(self) -> None:
        """Follow the policy, if it does. Called after each batch."""
        ...

    def state(self) -> dict[str, Any] | None:
        """The state for a checkpoint, in the leader, as copies; None if it has none."""
        ...

    def load(self, state: dict[str, Any] | None) -> None:
        """Load the leader's state. Raises `TrainerError` if it is another reference than this one."""
        ...


@dataclass(frozen=True, slots=True)
class ReferenceScores:
    """What others say of the trained tokens of a batch, per row."""

    logprobs: Sequence[FloatArray] | None = None
    """Logprobs of the reference policy, float32 [T] each, for a KL term in the loss."""
    top: Sequence[TopTokens] | None = None
    """The teacher's likeliest tokens, for a divergence in the loss."""

    def part(self, indices: Sequence[int]) -> "ReferenceScores":
        """Those of some rows."""
        return ReferenceScores(
            None if self.logprobs is None else [self.logprobs[index] for index in indices],
            None if self.top is None else [self.top[index] for index in indices],
        )


def make_reference(
    settings: StartReference | AverageReference | VersionReference | ModelReference | EngineReference,
    config: RunConfig,
    policy: Policy,
    update: UpdateSettings,
    world: World,
) -> Reference:
    """The reference that settings name, beside a policy that has the run's starting weights.

    Raises `PolicyError` if its weights are missing or do not fit.
    """
    if isinstance(settings, EngineReference):
        from trainers.references.engine import ScoringEngine

        return ScoringEngine(settings, world)
    if isinstance(settings, ModelReference):
        from trainers.references.model import ReferenceModel

        return ReferenceModel.of_folder(settings.path, config, update, world)
    if isinstance(settings, AverageReference):
        from trainers.references.average import AverageOfSteps

        return AverageOfSteps(settings, policy, update, world)
    if isinstance(settings, VersionReference):
        from trainers.references.fixed import FixedWeights

        return FixedWeights.of_version(settings, policy, update, world)
    from trainers.references.fixed import FixedWeights

    return FixedWeights.of_start(Path(config.policy.path), policy, update, world)


def make_teacher(
    settings: VersionReference | ModelReference | EngineReference,
    config: RunConfig,
    policy: Policy,
    update: UpdateSettings,
    world: World,
    *,
    whole: bool,
) -> Reference:
    """The teacher that settings name. If `whole`, it is a model of its own, whose whole distributions are
    compared in the same pass. Raises as `make_reference` does.
    """
    if whole and isinstance(settings, VersionReference):
        from trainers.references.model import ReferenceModel

        return ReferenceModel.of_version(settings, config, update, world)
    return make_reference(settings, config, policy, update, world)
