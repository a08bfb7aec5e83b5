"""Policy versions on disk: written once, whole or not at all, and verified when read.

A version is a directory `v{n:08d}/` (`trainers.weights.manifest`). It is written under a temporary name,
synced to disk and renamed, so a reader sees no half of it and a version is never overwritten.
"""

import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash
from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import PolicyError
from trainers.weights.chain import chain_of
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
