"""A transformers model's weights as policy versions have them."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

_WEIGHTS = (".safetensors", ".bin", ".pt", ".index.json")


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters under their Hugging Face names; tied ones once."""
    return copied(model.named_parameters())


def copied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors by name, as copies in the processor's memory."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors}


def write_model(source: Path, weights: dict[str, Tensor], folder: Path) -> None:
    """A Hugging Face folder like the one at `source`, with other weights."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copy(file, folder)
    whole = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
