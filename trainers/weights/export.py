"""A policy version as a Hugging Face model folder, which any engine loads."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from harnessgym.errors import PolicyError
from trainers.weights.chain import read_version
from trainers.weights.manifest import FULL, version_path

_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


def write_model(source: Path, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a model folder with these weights and the other files of `source` (configuration, tokenizer,
    ...).

    Raises `OSError` if something cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, folder / file.name)
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        folder / FULL,
        metadata={"format": "pt"},
    )


def export(versions: Path, version: int, model: Path, out: Path, checksum: str) -> None:
    """Write a version of a `versions` folder to `out`, with the other files (tokenizer, template, ...) of a
    model folder.

    `out` is written atomically. All tensors are compared with the version's checksums, and these with
    `checksum`, which the run's store has: the folder may be of another run. Raises `PolicyError` if `out` is
    not empty, or the version cannot be read or written, or is another.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PolicyError(f"{out} exists already. Choose another folder, or remove that one first.")
    path = version_path(versions, version)
    manifest, weights = read_version(path)
    if (manifest.version, manifest.checksum) != (version, checksum):
        raise PolicyError(
            f"{path} is not what this run published: it has version {manifest.version} with checksum "
            f"{manifest.checksum}, and the run's store recorded version {version} with {checksum}. Put the "
            "run's own files back."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise PolicyError(f"{out} cannot be written: {error}.") from error
    try:
        write_model(model, weights, draft)
        draft.chmod(0o755)
        draft.replace(out)
    except OSError as error:
        raise PolicyError(f"{out} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
