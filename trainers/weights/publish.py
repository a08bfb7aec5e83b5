"""Policy versions on disk: written once, whole or not at all, and verified when read.

A version is a directory `v{n:08d}/` with `manifest.json`, `model.safetensors` and a `COMMITTED` marker. It is written under a
temporary name, synced to disk and renamed, so a reader sees no half of it and a version is never overwritten.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from harnessgym.errors import PolicyError

MARKER = "COMMITTED"


class TensorEntry(BaseModel):
    """One tensor of a version: dtype as torch names it, shape, and xxh3-128 of its bytes in hex."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str
    shape: tuple[int, ...]
    xxh3: str


class Manifest(BaseModel):
    """What a version directory holds and where it comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    parent: int | None
    kind: Literal["full"] = "full"
    step: int
    """Training step that made it."""
    run: str
    tensors: dict[str, TensorEntry]

    @property
    def checksum(self) -> str:
        """xxh3-128 over all tensors' names and checksums, in hex."""
        lines = [f"{name} {entry.xxh3}\n" for name, entry in sorted(self.tensors.items())]
        return xxhash.xxh3_128_hexdigest("".join(lines).encode())


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that is on disk: its directory, its manifest's checksum, and its size in bytes."""

    path: Path
    checksum: str
    bytes: int


def version_path(root: Path, version: int) -> Path:
    """Directory of a version."""
    return root / f"v{version:08d}"


def publish_full(
    root: Path, version: int, parent: int | None, weights: dict[str, Tensor], step: int, run: str
) -> PublishedVersion:
    """Write all tensors as a version. Raises `PolicyError` if the version exists.

    One trainer at a time publishes to `root`: drafts that are there were left by one that was killed, and are removed.
    """
    target = version_path(root, version)
    if target.exists():
        raise PolicyError(f"Policy version {version} exists at {target}; versions are never overwritten. Publish a new one.")
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(".v*-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    entries = {name: _entry(tensor) for name, tensor in tensors.items()}
    manifest = Manifest(version=version, parent=parent, step=step, run=run, tensors=entries)
    draft = Path(tempfile.mkdtemp(prefix=f".v{version:08d}-", dir=root))
    try:
        save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
        (draft / "manifest.json").write_text(manifest.model_dump_json(indent=2) + "\n")
        for name in ("model.safetensors", "manifest.json"):
            _sync(draft / name)
        (draft / MARKER).touch()
        _sync(draft / MARKER)
        _sync(draft)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError as error:
        raise PolicyError(f"Policy version {version} could not be written to {target}: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _sync(root)
    return PublishedVersion(target, manifest.checksum, sum(file.stat().st_size for file in target.iterdir()))


def read_published(path: Path) -> PublishedVersion:
    """What `publish_full` returned for a version that is there already, its tensors verified."""
    manifest, _ = read_version(path)
    return PublishedVersion(path, manifest.checksum, sum(file.stat().st_size for file in path.iterdir()))


def newest_version(root: Path) -> int:
    """The highest version number that has a directory; -1 if there is none."""
    return max((int(path.name.removeprefix("v")) for path in root.glob("v*")), default=-1)


def read_version(path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """Manifest and tensors of a version directory.

    Raises `PolicyError` if it is not committed, or naming the first tensor that is missing or differs from the manifest.
    """
    if not (path / MARKER).is_file():
        raise PolicyError(f"No policy version at {path}: the {MARKER} marker is missing, so it was never completely written.")
    try:
        manifest = Manifest.model_validate_json((path / "manifest.json").read_bytes())
        weights = load_file(path / "model.safetensors")
    except (OSError, ValidationError, SafetensorError) as error:
        raise PolicyError(f"Policy version at {path} cannot be read: {error}. Publish it again as a new version.") from error
    for name, entry in manifest.tensors.items():
        if name not in weights or _entry(weights[name]) != entry:
            raise PolicyError(f"Policy version at {path}: tensor {name!r} is not the one that was published. Do not serve it.")
    if extra := weights.keys() - manifest.tensors.keys():
        raise PolicyError(f"Policy version at {path}: tensor {min(extra)!r} is not in its manifest. Do not serve it.")
    return manifest, weights


def _entry(tensor: Tensor) -> TensorEntry:
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return TensorEntry(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        xxh3=xxhash.xxh3_128_hexdigest(data.data),
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
