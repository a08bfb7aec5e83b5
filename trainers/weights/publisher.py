"""The trainer's side of publishing: writes each version as the run's settings ask, and removes those that
nobody needs.
"""

from pathlib import Path

import torch
from torch import Tensor

from harnessgym.errors import PolicyError
from harnessgym.run_config.trainer import PublishSection
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, policies, workers
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.weights.publish import BaseVersion, PublishedVersion, directory_bytes, publish
from trainers.weights.retention import collect


class Publisher:
    """Publishes the versions of one policy. It keeps the weights of the last one, which the next is
    compared with.
    """

    def __init__(
        self, root: Path, store: TraceStore, run_id: str, policy_id: str, settings: PublishSection
    ) -> None:
        self.root = root
        self.settings = settings
        self._store = store
        self._run_id = run_id
        self._policy_id = policy_id
        self._last: BaseVersion | None = None

    def publish(
        self, version: int, parent: int | None, weights: dict[str, Tensor], step: int
    ) -> PublishedVersion:
        """Write a version as a delta on its parent or in full. `weights` must stay as they are from here on.

        A version that is there already is verified and kept, be it full or a delta. Raises `PolicyError` if
        its tensors are not these: a version number stands for the same bits for ever.
        """
        dtype = getattr(torch, self.settings.dtype) if self.settings.dtype else None
        rounded = {
            name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        path = version_path(self.root, version)
        if path.exists():
            made = self._found(path, rounded)
        else:
            made = publish(
                self.root,
                version,
                parent,
                rounded,
                step,
                self._run_id,
                base=self._base(parent),
                full_every=self.settings.full_every,
            )
        self._last = BaseVersion(version, rounded)
        return made

    def collect(self) -> list[int]:
        """Remove what is neither among the newest versions, nor served, nor needed by one of these; returns
        their numbers.

        The newest are those with the highest numbers, and those that are fewer than `keep` steps behind along
        the surviving chain: where training went on from an earlier version, numbers in between are orphaned.
        """
        if not self.settings.keep:
            return []
        served = self._store.read(lambda conn: workers.of_run(conn, self._run_id))
        known = self._store.read(lambda conn: policies.versions(conn, self._policy_id))
        chain = VersionChain(known)
        in_use = {worker.version for worker in served if worker.follows(self._policy_id)}
        latest = max((item.version for item in known if item.committed and not item.orphaned), default=None)
        if latest is not None:
            in_use |= {
                item.version for item in known if chain.between(latest, item.version) < self.settings.keep
            }
        return collect(self.root, self.settings.keep, in_use)

    def _found(self, path: Path, weights: dict[str, Tensor]) -> PublishedVersion:
        manifest, tensors = read_version(path)
        if tensors.keys() != weights.keys() or not all(
            entry.matches(weights[name]) for name, entry in manifest.tensors.items()
        ):
            raise PolicyError(
                f"{path} holds other weights than the checkpoint of that version. Was `dtype` in "
                "[trainer.publish] changed, "
                "or a checkpoint put back? Move the version away if no worker ever served it; otherwise "
                "resume from the "
                "checkpoint that made it."
            )
        return PublishedVersion(path, manifest.checksum, directory_bytes(path), manifest.kind)

    def _base(self, parent: int | None) -> BaseVersion | None:
        """The parent's weights, from memory or, after a restart, from disk."""
        if parent is None or self.settings.kind == "full":
            return None
        if self._last is not None and self._last.version == parent:
            return self._last
        path = version_path(self.root, parent)
        try:
            return BaseVersion(parent, read_version(path)[1]) if path.exists() else None
        except PolicyError:  # damaged: the full version that is then written needs none of it
            return None
