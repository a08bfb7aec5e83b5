"""A reference with weights of the same policy that never change: the start, or a published version."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import xxhash
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.run_folder import RunFolder
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.held_weights import HeldWeights
from trainers.policies.model_folder import weight_files
from trainers.policy import Policy
from trainers.reference_settings import VersionReference
from trainers.scoring import Scorer, TopTokens
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.world import World


class FixedWeights:
    """Scores with weights that are held in main memory or, with adapters, with those below them."""

    def __init__(
        self, policy: Policy, update: UpdateSettings, world: World, held: HeldWeights | None, digest: str
    ) -> None:
        """`held` are the weights; None if they are those below the adapters. `digest` names them."""
        self.policy = policy
        self.world = world
        self._scorer = Scorer(policy, update, world)
        self._held = held
        self._digest = digest

    @classmethod
    def of_start(cls, folder: Path, policy: Policy, update: UpdateSettings, world: World) -> Self:
        """The weights of `folder`, which the policy has now."""
        held = HeldWeights(policy, world, device="cpu") if policy.lora is None else None
        return cls(policy, update, world, held, digest_of(folder))

    @classmethod
    def of_version(
        cls, settings: VersionReference, policy: Policy, update: UpdateSettings, world: World
    ) -> Self:
        """A version that a run has published. Raises `PolicyError` if it is gone or does not fit."""
        versions = RunFolder(settings.run, settings.policy).versions
        weights, digest = dict[str, Tensor](), ""
        if world.rank == 0:
            manifest, weights = read_version(version_path(versions, settings.version))
            digest = manifest.checksum
        held = HeldWeights(policy, world, weights, device="cpu")
        return cls(policy, update, world, held, world.broadcast(digest))

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """See `Reference.logprobs`."""
        with self._in_place():
            return self._scorer.logprobs(rows)

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """See `Reference.top`."""
        with self._in_place():
            return self._scorer.top(rows, count, vocabulary)

    def stepped(self) -> None:
        """Nothing: it stays as it is."""

    def state(self) -> dict[str, Any]:
        """Which weights they are, so that a resumed run notices others."""
        return {"digest": self._digest}

    def load(self, state: dict[str, Any] | None) -> None:
        """Raises `TrainerError` if the checkpoint's run had another reference."""
        check_digest(self._digest, state, self.world)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        if self._held is not None:
            with self._held.in_place():
                yield
            return
        with without_adapters(self.policy):
            yield


@contextmanager
def without_adapters(policy: Policy) -> Iterator[None]:
    """The policy computes as if it had no adapters."""
    layers: list[Any] = [module for module in policy.modules() if hasattr(module, "enable_adapters")]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def check_digest(digest: str, state: dict[str, Any] | None, world: World) -> None:
    """Raises `TrainerError` if the leader's state is of other weights."""
    before = world.broadcast(None if state is None else state.get("digest"))
    if before is not None and before != digest:
        raise TrainerError(
            f"The reference's weights are others ({digest}) than those with which the run began ({before}). "
            "Restore them, or begin a new run."
        )


def digest_of(folder: Path) -> str:
    """xxh3-128 of a model folder's weights, in hex."""
    digest = xxhash.xxh3_128()
    for path in weight_files(folder):
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()
