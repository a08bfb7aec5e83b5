"""Weights as a Hugging Face model folder, which any engine and any other tool loads."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from trainers.weights.manifest import FULL

_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")


def write_model(source: Path, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Fill `folder` with what the model folder `source` has (configuration, tokenizer, template, ...), but
    other weights.

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
