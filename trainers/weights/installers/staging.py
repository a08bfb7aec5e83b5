"""Files from which an engine loads a version: the version's own, or a scratch file that is written for it."""

import hashlib
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import UpstreamError
from harnessgym.store.policies import PolicyVersion

INSTALLING = "installing"
"""The label while the weights are none: an agent that finds it installs again."""


def label_of(policy_id: str, version: int) -> str:
    """The label of a policy's version."""
    return f"{version}@{policy_id}"


def version_in(label: str, policy_id: str) -> int | None:
    """The version that a label names, None if it names none of this policy."""
    version, _, policy = label.partition("@")
    return int(version) if version.isdecimal() and policy == policy_id else None


WEIGHTS = "model.safetensors"
_PREFIX = "staged-"
"""No version's own directory begins so: what is removed here is never one."""


def stage(weights: dict[str, Tensor], version: PolicyVersion, scratch: Path) -> Path:
    """A folder with all of a version's weights in `model.safetensors`.

    Where `version.path` has that file, it is its own; else one is written under `scratch`, which is this
    engine's alone: a mirror may have no more than the delta of a version that was published in full. Raises
    `UpstreamError` if it cannot be written.
    """
    own = Path(version.path)
    if (own / WEIGHTS).is_file():
        return own
    folder = scratch / f"{_PREFIX}v{version.version:08d}"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            folder / WEIGHTS,
            metadata={"format": "pt"},
        )
    except OSError as error:
        hint = "Choose another --scratch."
        raise UpstreamError(
            f"Version {version.version} could not be staged in {folder}: {error}. {hint}"
        ) from error
    return folder


def tidy(scratch: Path, served: Path) -> None:
    """Remove what is staged of other versions than the one that is served; an engine may go back to that
    one's file.
    """
    for folder in scratch.glob(f"{_PREFIX}v*"):
        if folder != served:
            shutil.rmtree(folder, ignore_errors=True)


def digests(weights: dict[str, Tensor]) -> dict[str, str]:
    """SHA-256 in hex of each tensor's bytes: every Python has it, so an engine's environment needs nothing
    for it.
    """
    return {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in weights.items()}


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
