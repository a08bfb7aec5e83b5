"""Policy versions on disk: written once, whole or not at all, and verified when read.

A version is a directory `v{n:08d}/` (`trainers.weights.manifest`). It is written under a temporary name,
synced to disk and renamed, so a reader sees no half of it and a version is never overwritten.
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
    """A version that is on disk: its directory, its manifest's checksum, and its size in bytes."""

    path: Path
    checksum: str
    bytes: int
    kind: Literal["full", "delta"] = "full"


@dataclass(frozen=True, slots=True)
class BaseVersion:
    """A version of the same folder and its weights, which a delta may overwrite."""

    version: int
    weights: dict[str, Tensor]


def publish_full(
    root: Path, version: int, parent: int | None, weights: dict[str, Tensor], step: int, run: str
) -> PublishedVersion:
    """Write all tensors as a version. Raises `PolicyError` if the version exists; see `publish`."""
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
    """Write a version: the overwrites of `base` if that serves, else all tensors.

    The version is full without a base; if names, dtypes or shapes are not the base's; if the delta would have
    more than `largest_share` of the tensors' bytes; and after `full_every` - 1 deltas in a row, which bounds
    what a newcomer reads. A full version that ends such a row has a delta as well, for those that hold the
    base.

    One trainer at a time publishes to `root`: drafts that are there were left by one that was killed, and are
    removed. Raises `PolicyError` if the version exists or cannot be written.
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
    """Have the disk hold a file or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _usable(root: Path, base: BaseVersion, entries: dict[str, TensorEntry]) -> int | None:
    """Number of versions from the newest full one to `base`; None if a delta cannot or must not build on
    it.
    """
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
            "The next version is published in full: tensor %r is not the one of version %d any more.",
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
    """Write `delta.bin` and return the entries with their payloads; None, and no file, once it has more
    than its share.
    """
    room = largest_share * sum(tensor.nbytes for tensor in tensors.values())
    coded = dict(entries)
    offset = 0
    recorded = base.weights
    with (draft / DELTA).open("wb") as file:
        for name, tensor in tensors.items():
            made = encode(recorded[name], tensor)
            size = len(made.payload)
            if not size:
                continue
            if offset + size > room:
                break
            file.write(made.payload)
            coded[name] = entries[name].model_copy(
                update={
                    "payload": Payload(
                        coding=made.coding,
                        changed=made.changed,
                        index_bytes=made.index_bytes,
                        offset=offset,
                        bytes=size,
                        xxh3=xxhash.xxh3_128_hexdigest(made.payload),
                    )
                }
            )
            offset += size
        else:
            return coded
    (draft / DELTA).unlink()
    return None


def _commit(draft: Path, target: Path, manifest: Manifest) -> None:
    """Make a draft with its data files the version at `target`."""
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
                "[trainer.publish] changed, or a checkpoint put back? Move the version away if no worker "
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
        except PolicyError:  # damaged: the full version that is then written needs none of it
            return None


log = logging.getLogger(__name__)


def collect(root: Path, keep: int, in_use: Collection[int] = ()) -> list[int]:
    """Remove versions that are not needed; returns their numbers, the newest first.

    Needed are the `keep` newest, those `in_use`, and every version that one of these is read from. A version
    that cannot be read may build on anything, so all older ones stay while it is needed. A version is renamed
    before it is removed, so a reader finds it whole or not at all; what a killed process left half removed
    goes with the next call. Deltas go before their bases.
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
    """Remove versions: each is whole or not there."""
    for number in numbers:
        path = version_path(root, number)
        away = root / f".removed-{path.name}"
        shutil.rmtree(away, ignore_errors=True)
        path.rename(away)
        sync(root)
        shutil.rmtree(away, ignore_errors=True)


def _needed_by(root: Path, number: int, there: Collection[int]) -> set[int]:
    """The versions that reading one takes."""
    try:
        return {link.manifest.version for link in chain_of(version_path(root, number))}
    except PolicyError as error:
        log.warning("Nothing older than version %d is removed: %s", number, error)
        return {other for other in there if other <= number}
