"""Reads policy versions: a full one and the deltas after it, or only the deltas after weights that the reader
has.

All tensors are compared with the checksums in the version's manifest, so every way of reading gives the same
bits. A reader's own weights are never changed: a tensor is copied before the first overwrite.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harnessgym.errors import PolicyError
from trainers.weights.delta import Delta, apply
from trainers.weights.manifest import (
    DELTA,
    FULL,
    Manifest,
    Payload,
    TensorEntry,
    file_checksum,
    read_manifest,
    version_path,
)

log = logging.getLogger(__name__)

_REMEDY = "Install another version in full, or publish the weights again as a new version (it will be full)."


@dataclass(frozen=True, slots=True)
class Link:
    """A version directory and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def full(self) -> bool:
        """Whether all its tensors are here; a mirror may have fetched only its delta."""
        return (self.path / FULL).is_file()


def read_version(path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """Manifest and tensors of a version directory. Its bases are in the same folder.

    Raises `PolicyError` if it or a version on which it builds is missing, not committed or damaged. The
    message names the file, or the first tensor that differs from the manifest.
    """
    first, *rest = chain_of(path)
    weights = _read_full(first)
    return _overwritten(weights, rest, rest[-1]) if rest else (first.manifest, weights)


def read_from(version: int, weights: Mapping[str, Tensor], path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """`read_version` for a reader that has the `weights` of a version: reads only the deltas after it.

    If they do not lead to the requested version (one is missing or damaged, or the weights are not that
    version's), everything is read. `weights` are not changed; the result shares the unchanged tensors with
    them.
    """
    manifest = read_manifest(path)
    if manifest.base is None and manifest.version != version:
        return read_version(path)
    try:
        links = links_after(version, path)
        return _overwritten(weights, links, Link(path, manifest))
    except PolicyError as error:
        log.warning(
            "Version %d cannot be updated to the one at %s, which is read in full instead. %s",
            version,
            path,
            error,
        )
        return read_version(path)


def chain_of(path: Path) -> list[Link]:
    """The versions to read for one: a full one, then deltas in order up to the one at `path`. Raises
    `PolicyError`.
    """
    links = [Link(path, read_manifest(path))]
    while not links[-1].full:
        links.append(_base_of(links[-1]))
    return links[::-1]


def links_after(version: int, path: Path) -> list[Link]:
    """The deltas that turn a version into the one at `path`, in order; none if it is that one. Raises
    `PolicyError`.
    """
    link = Link(path, read_manifest(path))
    if link.manifest.version == version:
        return []
    links = [link]
    while (base := links[-1].manifest.base) != version:
        if base is None or base < version:
            raise PolicyError(
                f"Policy version {link.manifest.version} at {path} does not build on version {version}."
            )
        links.append(_base_of(links[-1]))
    return links[::-1]


def _base_of(link: Link) -> Link:
    """The version on which a link's delta builds."""
    manifest = link.manifest
    if manifest.base is None:
        raise PolicyError(
            f"Policy version at {link.path} cannot be read: {FULL} is missing, and it has no delta. {_REMEDY}"
        )
    path = version_path(link.path.parent, manifest.base)
    try:
        base = read_manifest(path)
    except PolicyError as error:
        raise PolicyError(
            f"{error} Version {manifest.version} at {link.path} is a delta that needs it. {_REMEDY}"
        ) from error
    if (base.version, base.checksum) != (manifest.base, manifest.base_checksum):
        raise PolicyError(
            f"{path} holds version {base.version} with checksum {base.checksum}, but the delta at "
            f"{link.path} was made of version {manifest.base} with {manifest.base_checksum}. {_REMEDY}"
        )
    return Link(path, base)


def _read_full(link: Link) -> dict[str, Tensor]:
    """The tensors of a full version, verified."""
    try:
        weights = load_file(link.path / FULL)
        entry = link.manifest.files.get(FULL)
        _verify(weights, link)
        if entry is not None and entry.xxh3 != file_checksum(link.path / FULL):
            raise PolicyError(
                f"Policy version at {link.path}: {FULL} is not the file that was published. {_REMEDY}"
            )
    except (OSError, SafetensorError) as error:
        raise PolicyError(
            f"Policy version at {link.path} cannot be read: {error}. Publish it again as a new version."
        ) from error
    return weights


def _overwritten(
    weights: Mapping[str, Tensor], links: Sequence[Link], wanted: Link
) -> tuple[Manifest, dict[str, Tensor]]:
    """Weights after some deltas, verified against the manifest of the wanted version."""
    tensors = dict(weights)
    entries = wanted.manifest.tensors
    ours = set[str]()  # tensors that were copied and may be written to
    if other := [
        name for name in entries.keys() | tensors.keys() if not _alike(entries.get(name), tensors.get(name))
    ]:
        raise PolicyError(
            f"Tensor {min(other)!r} differs in dtype or shape from {wanted.path}, or only one side has it."
        )
    for link in links:
        try:
            with (link.path / DELTA).open("rb") as file:
                for name, entry in link.manifest.tensors.items():
                    if entry.payload is None:
                        continue
                    if name not in ours:
                        tensors[name] = _copied(tensors[name], whole=entry.payload.coding == "whole")
                        ours.add(name)
                    _overwrite(tensors[name], entry.payload, file, f"{link.path / DELTA}: tensor {name!r}")
        except (OSError, KeyError) as error:
            raise PolicyError(
                f"The delta at {link.path / DELTA} cannot be read: {error}. {_REMEDY}"
            ) from error
    _verify(tensors, wanted)
    return wanted.manifest, tensors


def _alike(entry: TensorEntry | None, tensor: Tensor | None) -> bool:
    return entry is not None and tensor is not None and entry.describes(tensor)


def _copied(tensor: Tensor, *, whole: bool) -> Tensor:
    """A contiguous copy in main memory; uninitialised if the `whole` tensor will be overwritten."""
    if whole:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _overwrite(tensor: Tensor, payload: Payload, file: IO[bytes], where: str) -> None:
    """Read a payload, verify it and apply it."""
    file.seek(payload.offset)
    raw = file.read(payload.bytes)
    if xxhash.xxh3_128_hexdigest(raw) != payload.xxh3:
        raise PolicyError(f"{where} is not what was published: its payload's checksum differs. {_REMEDY}")
    apply(Delta(payload.coding, payload.changed, payload.index_bytes, raw), tensor)


def _verify(weights: dict[str, Tensor], link: Link) -> None:
    """Raise `PolicyError` unless the tensors equal those of a version bit for bit."""
    tensors = link.manifest.tensors
    for name, entry in tensors.items():
        if name not in weights or not entry.matches(weights[name]):
            raise PolicyError(
                f"Policy version at {link.path}: tensor {name!r} is not the one that was published. {_REMEDY}"
            )
    if extra := weights.keys() - tensors.keys():
        raise PolicyError(
            f"Policy version at {link.path}: tensor {min(extra)!r} is not in its manifest. {_REMEDY}"
        )
