"""A reference that is a model of its own: another folder, of any architecture, or a version of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.policies.loading import load_policy
from trainers.policy import Policy
from trainers.reference_settings import VersionReference
from trainers.references.fixed import check_digest, digest_of
from trainers.scoring import Scorer, TopTokens
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.world import World


class ReferenceModel:
    """Scores with a model beside the policy, in shards like it."""

    def __init__(
        self, model: Policy, config: RunConfig, update: UpdateSettings, world: World, digest: str = ""
    ) -> None:
        """`model` becomes the reference's own; `digest` names its weights."""
        self._digest = digest
        self.model = model.requires_grad_(requires_grad=False)
        self.model.products = getattr(torch, config.trainer.dtype)
        self.world = world
        self._scorer = Scorer(self.model, update, world)
        if world.size > 1:
            from trainers.shards import shard

            shard(self.model, world, methods=("logprobs", "likeliest", "hidden", "logits"))
        else:
            self.model.to(world.device)

    @classmethod
    def of_folder(cls, folder: Path, config: RunConfig, update: UpdateSettings, world: World) -> Self:
        """The model in a folder. Raises `PolicyError` if it cannot be loaded."""
        return cls(load_policy(folder), config, update, world, digest_of(folder))

    @classmethod
    def of_version(
        cls, settings: VersionReference, config: RunConfig, update: UpdateSettings, world: World
    ) -> Self:
        """A version that a run has published, of a model like the policy. Raises `PolicyError` if it is gone
        or does not fit.
        """
        model = load_policy(Path(config.policy.path), config.policy.implementation)
        versions = RunFolder(settings.run, settings.policy).versions
        manifest, weights = read_version(version_path(versions, settings.version))
        model.load(weights)
        return cls(model, config, update, world, manifest.checksum)

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """See `Reference.logprobs`."""
        return self._scorer.logprobs(_unrouted(rows))

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """See `Reference.top`."""
        return self._scorer.top(_unrouted(rows), count, vocabulary)

    def stepped(self) -> None:
        """Nothing: it stays as it is."""

    def state(self) -> dict[str, Any]:
        """Which weights they are, so that a resumed run notices others."""
        return {"digest": self._digest}

    def load(self, state: dict[str, Any] | None) -> None:
        """Raises `TrainerError` if the checkpoint's run had another reference."""
        check_digest(self._digest, state, self.world)


def _unrouted(rows: Sequence[Row]) -> list[Row]:
    """The rows without their recorded experts, which are the policy's: another model chooses its own."""
    return [row if row.experts is None else replace(row, experts=None) for row in rows]
