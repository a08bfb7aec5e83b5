"""Writes policy versions to disk and removes old ones.

A version is a directory `v{n:08d}/` (`trainers.weights.manifest`). It is written under a temporary name,
synced to disk and renamed, so a reader never sees a partial version, and a version is never overwritten.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import xxhash
from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import PolicyError
from harnessgym.run_config.trainer import PublishSection
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, policies, workers
from trainers.weights.chain import chain_of, read_version
from trainers.weights.delta import encode
from trainers.weights.manifest import (
    DELTA,
    FULL,
    MANIFEST,
    MARKER,
    FileEntry,
    Manifest,
    Payload,
    TensorEntry,
    file_checksum,
    marker_of,
    read_manifest,
    version_numbers,
    version_path,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version on disk: its directory, its manifest's checksum, and its size in bytes."""

    path: Path
    checksum: str
    bytes: int
    kind: Literal["full", "delta"] = "full"


@dataclass(frozen=True, slots=True)
class BaseVersion:
    """A version of the same folder and its weights, on which a delta may build."""

    version: int
    weights: dict[str, Tensor]


def publish_full(
    root: Path, version: int, parent: int | None, weights: dict[str, Tensor], step: int, run: str
) -> PublishedVersion:
    """Write a full version. Raises `PolicyError` if the version exists; see `publish`."""
    return publish(root, version, parent, weights, step, run)


def publish(
    root: Path,
    version: int,
    parent: int | None,
    weights: dict[str, Tensor],
    step: int,
    run: str,
    *,
    base: BaseVersion | None = None,
    largest_share: float = 0.8,
    full_every: int = 16,
) -> PublishedVersion:
    """Write a version: as a delta on `base` if possible, else in full.

    The version is full if there is no base; if names, dtypes or shapes differ from the base's; if the delta
    would have more than `largest_share` of the tensors' bytes; and after `full_every` - 1 deltas in a row,
    which limits what a new reader must read. In the last case it has a delta, too, for readers that have the
    base.

    Only one trainer at a time may publish to `root`. Drafts of a killed trainer are removed. Raises
    `PolicyError` if the version exists or cannot be written.
    """
    target = version_path(root, version)
    if target.exists():
        raise PolicyError(
            f"Policy version {version} exists at {target}; versions are never overwritten. Publish a new one."
        )
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(".v*-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    entries = {name: TensorEntry.of(tensor) for name, tensor in tensors.items()}
    fields = {"format": 2, "version": version, "parent": parent, "step": step, "run": run}
    draft = Path(tempfile.mkdtemp(prefix=f".v{version:08d}-", dir=root))
    try:
        length = None if base is None else _usable(root, base, entries)
        coded = (
            None
            if base is None or length is None
            else _write_delta(draft, base, tensors, entries, largest_share)
        )
        if base is not None and coded is not None:
            checksum = read_manifest(version_path(root, base.version)).checksum
            fields |= {"kind": "delta", "base": base.version, "base_checksum": checksum}
        if coded is None or length is None or length >= full_every:
            save_file(tensors, draft / FULL, metadata={"format": "pt"})
            fields["kind"] = "full"
        files = {
            file.name: FileEntry(bytes=file.stat().st_size, xxh3=file_checksum(file))
            for file in draft.iterdir()
        }
        manifest = Manifest.model_validate({**fields, "tensors": coded or entries, "files": files})
        _commit(draft, target, manifest)
    except OSError as error:
        raise PolicyError(f"Policy version {version} could not be written to {target}: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync(root)
    return PublishedVersion(target, manifest.checksum, directory_bytes(target), manifest.kind)


def directory_bytes(path: Path) -> int:
    """Bytes of a version's files."""
    return sum(file.stat().st_size for file in path.iterdir())


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _usable(root: Path, base: BaseVersion, entries: dict[str, TensorEntry]) -> int | None:
    """Number of versions from the newest full one to `base`; None if no delta can build on it."""
    try:
        chain = chain_of(version_path(root, base.version))
    except PolicyError as error:
        log.warning("The next version is published in full: %s", error)
        return None
    recorded = chain[-1].manifest.tensors
    if {name: (entry.dtype, entry.shape) for name, entry in recorded.items()} != {
        name: (entry.dtype, entry.shape) for name, entry in entries.items()
    }:
        return None
    changed = [
        name
        for name, entry in recorded.items()
        if name not in base.weights or not entry.matches(base.weights[name])
    ]
    if changed:
        log.warning(
            "The next version is published in full: tensor %r was changed since version %d.",
            changed[0],
            base.version,
        )
        return None
    return len(chain)


def _write_delta(
    draft: Path,
    base: BaseVersion,
    tensors: dict[str, Tensor],
    entries: dict[str, TensorEntry],
    largest_share: float,
) -> dict[str, TensorEntry] | None:
    """Write `delta.bin` and return the entries with their payloads; None, and no file, if it exceeds its
    share.
    """
    room = largest_share * sum(tensor.nbytes for tensor in tensors.values())
    coded = dict(entries)
    offset = 0
    recorded = base.weights
    with (draft / DELTA).open("wb") as file:
        for name, tensor in tensors.items():
            delta = encode(recorded[name], tensor)
            size = len(delta.payload)
            if not size:
                continue
            if offset + size > room:
                break
            file.write(delta.payload)
            coded[name] = entries[name].model_copy(
                update={
                    "payload": Payload(
                        coding=delta.coding,
                        changed=delta.changed,
                        index_bytes=delta.index_bytes,
                        offset=offset,
                        bytes=size,
                        xxh3=xxhash.xxh3_128_hexdigest(delta.payload),
                    )
                }
            )
            offset += size
        else:
            return coded
    (draft / DELTA).unlink()
    return None


def _commit(draft: Path, target: Path, manifest: Manifest) -> None:
    """Turn a draft with its data files into the version at `target`."""
    # The marker is written after everything else is on disk, because it says that the version is complete;
    # a power failure must not leave a marker beside files that were lost. The rename comes last, so readers
    # see the version all at once.
    raw = manifest.encoded()
    (draft / MANIFEST).write_bytes(raw)
    for name in (*manifest.files, MANIFEST):
        sync(draft / name)
    (draft / MARKER).write_bytes(marker_of(raw))
    sync(draft / MARKER)
    sync(draft)
    draft.chmod(0o755)
    draft.rename(target)


class Publisher:
    """Publishes the versions of one policy. It keeps the weights of the last one as the base of the next
    delta.
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
        """Write a version as a delta on its parent or in full. The caller must not change `weights`
        afterwards.

        A version that exists is verified and kept. Raises `PolicyError` if its tensors differ: a version
        number always means the same bits.
        """
        dtype = getattr(torch, self.settings.dtype) if self.settings.dtype else None
        rounded = {
            name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        path = version_path(self.root, version)
        if path.exists():
            published = self._existing(path, rounded)
        else:
            published = publish(
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
        return published

    def collect(self) -> list[int]:
        """Remove versions that are neither new, nor served, nor needed by one that is; returns their numbers.

        New are the `keep` versions with the highest numbers, and those less than `keep` steps behind on the
        surviving chain. The two differ after training has resumed from an earlier version, which orphans the
        numbers in between.
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

    def _existing(self, path: Path, weights: dict[str, Tensor]) -> PublishedVersion:
        manifest, tensors = read_version(path)
        if tensors.keys() != weights.keys() or not all(
            entry.matches(weights[name]) for name, entry in manifest.tensors.items()
        ):
            raise PolicyError(
                f"{path} has other weights than the checkpoint of that version. Was `dtype` in "
                "[trainer.publish] changed, or a checkpoint restored? Move the version away if no worker "
                "ever served it; otherwise resume from the checkpoint that made it."
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
        except PolicyError:  # damaged: the next version is full and does not need it
            return None


def collect(root: Path, keep: int, in_use: Collection[int] = ()) -> list[int]:
    """Remove versions that are not needed; returns their numbers, the newest first.

    Needed are the `keep` newest, those `in_use`, and all versions from which one of these is read. A version
    that cannot be read may build on any older one, so all older ones stay while it is needed.
    """
    for leftover in root.glob(".removed-v*"):
        shutil.rmtree(leftover, ignore_errors=True)
    there = [number for number in version_numbers(root) if (version_path(root, number) / MARKER).is_file()]
    needed = set[int]()
    for number in {*there[len(there) - min(keep, len(there)) :], *(set(in_use) & set(there))}:
        needed |= _needed_by(root, number, there)
    removed = [number for number in reversed(there) if number not in needed]
    remove(root, removed)
    return removed


def remove(root: Path, numbers: Iterable[int]) -> None:
    """Remove versions, each atomically."""
    # Renamed first, so a reader finds a version whole or not at all; `collect` removes what a killed process
    # left. The caller's order, newest first, removes a delta before its base.
    for number in numbers:
        path = version_path(root, number)
        away = root / f".removed-{path.name}"
        shutil.rmtree(away, ignore_errors=True)
        path.rename(away)
        sync(root)
        shutil.rmtree(away, ignore_errors=True)


def _needed_by(root: Path, number: int, there: Collection[int]) -> set[int]:
    """The versions that must be read for one."""
    try:
        return {link.manifest.version for link in chain_of(version_path(root, number))}
    except PolicyError as error:
        log.warning("Nothing older than version %d is removed: %s", number, error)
        return {other for other in there if other <= number}
