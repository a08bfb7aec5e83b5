"""A transformers model's weights as policy versions have them."""

from collections.abc import Iterable

from torch import Tensor, nn


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters under their Hugging Face names; tied ones once."""
    return copied(model.named_parameters())


def copied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors by name, as copies in the processor's memory."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors}
