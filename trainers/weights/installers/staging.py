"""Files and labels of the version that an external engine loads.

An engine reports what it serves as its "weight version", here the label `VERSION@POLICY`. The policy's id is
part of it, because version 3 of another run is not version 3 of this one. The files are the version's own, or
a copy in a scratch folder.
"""

import hashlib
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import UpstreamError
from harnessgym.store.policies import PolicyVersion

INSTALLING = "installing"
"""The label during an installation, when the weights are no version. An agent that sees it installs again."""


def label_of(policy_id: str, version: int) -> str:
    """The label of a policy's version."""
    return f"{version}@{policy_id}"


def version_in(label: str, policy_id: str) -> int | None:
    """The version in a label; None if it is not one of this policy."""
    version, _, policy = label.partition("@")
    return int(version) if version.isdecimal() and policy == policy_id else None


WEIGHTS = "model.safetensors"
_PREFIX = "staged-"
"""No version directory has this prefix, so `tidy` cannot remove one."""


def stage(weights: dict[str, Tensor], version: PolicyVersion, scratch: Path) -> Path:
    """A folder with all of a version's weights in `model.safetensors`.

    This is the version's own folder if it has the file, else a copy under `scratch`, which no other engine
    may use. Even a version that was published in full may be only a delta in a mirror. Raises `UpstreamError`
    if the copy cannot be written.
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
    """Remove staged copies except that of the served version, to whose file an engine may go back."""
    for folder in scratch.glob(f"{_PREFIX}v*"):
        if folder != served:
            shutil.rmtree(folder, ignore_errors=True)


def digests(weights: dict[str, Tensor]) -> dict[str, str]:
    """SHA-256 in hex of each tensor's bytes. It is in Python's standard library, so an engine's environment
    needs no further package.
    """
    return {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in weights.items()}


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
