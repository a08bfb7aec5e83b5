"""The manifest of a version directory, `v{n:08d}/manifest.json`, and its `COMMITTED` marker.

A version has all its tensors (`model.safetensors`), or a delta on an earlier version (`delta.bin`), or both:
then readers that have the base fetch only the delta. The marker holds the checksum of the manifest, and the
manifest the checksums of everything else, so no changed byte of a version goes unnoticed. Format 1 has full
versions only, with an empty marker.
"""

import re
from pathlib import Path
from typing import Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from harnessgym.errors import PolicyError
from trainers.weights.delta import Coding, flat_bytes

MARKER = "COMMITTED"
MANIFEST = "manifest.json"
FULL = "model.safetensors"
DELTA = "delta.bin"

_DIRECTORY = re.compile(r"v(\d{8,})")


class Payload(BaseModel):
    """The location of a tensor's delta in `delta.bin`; see `trainers.weights.delta.Delta`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    coding: Coding
    changed: int = Field(ge=0)
    index_bytes: int = Field(ge=0)
    offset: int = Field(ge=0)
    """First byte in the file."""
    bytes: int = Field(gt=0)
    xxh3: str
    """xxh3-128 of these bytes, in hex."""


class TensorEntry(BaseModel):
    """One tensor of a version: dtype as torch names it, shape, and xxh3-128 of its bytes in hex, however
    it is stored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str
    shape: tuple[int, ...]
    xxh3: str
    payload: Payload | None = None
    """Its part of the delta; None if it equals the base's, or there is no delta."""

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorEntry":
        """The entry of a tensor, without a payload."""
        digest = xxhash.xxh3_128_hexdigest(flat_bytes(tensor).data)
        return cls(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), xxh3=digest)

    def describes(self, tensor: Tensor) -> bool:
        """Whether a tensor has this dtype and shape."""
        return (self.dtype, self.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def matches(self, tensor: Tensor) -> bool:
        """Whether a tensor has this dtype and shape, and equal bits."""
        return self.describes(tensor) and self.xxh3 == xxhash.xxh3_128_hexdigest(flat_bytes(tensor).data)


class FileEntry(BaseModel):
    """A data file of a version: size, and xxh3-128 of all its bytes in hex."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int = Field(ge=0)
    xxh3: str


class Manifest(BaseModel):
    """The contents of a version directory and its origin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1, 2] = 1
    version: int
    parent: int | None = None
    kind: Literal["full", "delta"] = "full"
    """`full` versions were published with all tensors; some have a delta, too."""
    base: int | None = None
    """The version on which the delta builds; None without a delta."""
    base_checksum: str | None = None
    """`checksum` of that version."""
    step: int
    """Training step that made it."""
    run: str
    tensors: dict[str, TensorEntry]
    files: dict[str, FileEntry] = Field(default_factory=dict)
    """Data files by name; none in format 1."""

    @model_validator(mode="after")
    def _delta_has_a_base(self) -> "Manifest":
        if (self.base is None) != (self.base_checksum is None) or (
            self.base is None and self.kind == "delta"
        ):
            raise ValueError("a delta needs a base and its checksum")
        if self.base is not None and self.base >= self.version:
            raise ValueError(f"version {self.version} cannot build on the later version {self.base}")
        return self

    @property
    def checksum(self) -> str:
        """xxh3-128 over all tensors' names and checksums, in hex: the same for the same tensors, however
        they are stored.
        """
        lines = [f"{name} {entry.xxh3}\n" for name, entry in sorted(self.tensors.items())]
        return xxhash.xxh3_128_hexdigest("".join(lines).encode())

    def encoded(self) -> bytes:
        """The manifest as bytes of the file."""
        return self.model_dump_json(indent=2, exclude_none=True).encode() + b"\n"


def version_path(root: Path, version: int) -> Path:
    """Directory of a version."""
    return root / f"v{version:08d}"


def version_numbers(root: Path) -> list[int]:
    """Numbers of all version directories, in order."""
    matches = (_DIRECTORY.fullmatch(path.name) for path in root.glob("v*"))
    return sorted(int(match[1]) for match in matches if match)


def newest_version(root: Path) -> int:
    """The highest version number that has a directory; -1 if there is none."""
    return max(version_numbers(root), default=-1)


def marker_of(manifest: bytes) -> bytes:
    """The contents of the marker for this manifest."""
    return xxhash.xxh3_128_hexdigest(manifest).encode() + b"\n"


def parse_manifest(raw: bytes, marker: bytes, where: str) -> Manifest:
    """The manifest of a committed version. Raises `PolicyError` if it is malformed or does not match the
    marker.
    """
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise PolicyError(
            f"Policy version at {where} cannot be read: {error}. Publish it again as a new version."
        ) from error
    if marker != (marker_of(raw) if manifest.format > 1 else b""):
        raise PolicyError(
            f"Policy version at {where} cannot be read: {MANIFEST} does not match the checksum in {MARKER}. "
            "Publish the weights again as a new version."
        )
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of a version directory. Raises `PolicyError` if it is missing, not committed, or
    damaged.
    """
    if not (path / MARKER).is_file():
        raise PolicyError(
            f"No policy version at {path}: the {MARKER} marker is missing, so it was never completely "
            "written. Choose another version."
        )
    try:
        raw = (path / MANIFEST).read_bytes()
        marker = (path / MARKER).read_bytes()
    except OSError as error:
        raise PolicyError(
            f"Policy version at {path} cannot be read: {error}. Publish it again as a new version."
        ) from error
    return parse_manifest(raw, marker, str(path))


def file_checksum(path: Path) -> str:
    """xxh3-128 of a file, in hex."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())
