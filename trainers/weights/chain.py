"""Reading policy versions: a full one and the deltas behind it, or only the deltas behind weights that the
reader holds.

Whatever way a version is read, all its tensors are compared with the checksums in its manifest, so every way
gives the same bits. Weights that a reader brings are never written to: a tensor is copied before the first
overwrite.
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
        """Whether its tensors are here whole; a mirror may have fetched its delta only."""
        return (self.path / FULL).is_file()


def read_version(path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """Manifest and tensors of a version directory, whose bases lie beside it.

    Raises `PolicyError` if it or a version that it builds on is missing, not committed or damaged, naming the
    file, or the first tensor that differs from the manifest.
    """
    first, *rest = chain_of(path)
    weights = _read_full(first)
    return _overwritten(weights, rest, rest[-1]) if rest else (first.manifest, weights)


def read_from(version: int, weights: Mapping[str, Tensor], path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """`read_version` for a reader that holds `weights` of a version: it reads the links after that one only.

    If those do not lead to the wanted version (one is missing or damaged, or the weights are not that
    version's), the version is read whole. `weights` stay as they are; unchanged tensors of the result are
    theirs.
    """
    manifest = read_manifest(path)
    if manifest.base is None and manifest.version != version:
        return read_version(path)
    try:
        links = links_after(version, path)
        return _overwritten(weights, links, Link(path, manifest))
    except PolicyError as error:
        log.warning(
            "Version %d cannot be made into that at %s, which is therefore read whole. %s",
            version,
            path,
            error,
        )
        return read_version(path)


def chain_of(path: Path) -> list[Link]:
    """The versions to read for one: a full one, then deltas in order up to the one at `path`. Raises
    `PolicyError`.
    """
    found = [Link(path, read_manifest(path))]
    while not found[-1].full:
        found.append(_base_of(found[-1]))
    return found[::-1]


def links_after(version: int, path: Path) -> list[Link]:
    """The deltas in order that make a version into the one at `path`; none if it is that one. Raises
    `PolicyError`.
    """
    link = Link(path, read_manifest(path))
    if link.manifest.version == version:
        return []
    found = [link]
    while (base := found[-1].manifest.base) != version:
        if base is None or base < version:
            raise PolicyError(
                f"Policy version {link.manifest.version} at {path} does not build on version {version}."
            )
        found.append(_base_of(found[-1]))
    return found[::-1]


def _base_of(link: Link) -> Link:
    """The version that a link's delta overwrites."""
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
    ours = set[str]()
    if other := [
        name for name in entries.keys() | tensors.keys() if not _alike(entries.get(name), tensors.get(name))
    ]:
        raise PolicyError(
            f"Tensor {min(other)!r} has another dtype or shape than in {wanted.path}, or only one of them "
            "has it."
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
    """A contiguous tensor in main memory to write to; its contents do not matter if all are overwritten."""
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
    """Raise `PolicyError` unless the tensors are, bit by bit, those of a version."""
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
