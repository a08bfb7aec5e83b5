"""The weight transfer of TRL's asynchronous trainer: each step's weights become a policy version of the run.

Nothing is paused: the engines install the version by delta, one after another.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from trainers.trl_bridge.rollout_worker import RolloutWorker


class WeightTransfer:
    """TRL's `WeightTransferProtocol`, for the batches that a worker gives to the same trainer."""

    def __init__(self, worker: "RolloutWorker") -> None:
        self.worker = worker
        self._begun = False

    def init_weight_transfer(self) -> None:
        """Does nothing: the engines follow the run by themselves."""

    def pause(self) -> None:
        """Does nothing: an engine ends its own calls before it installs a version."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Publish (name, tensor) pairs: first the starting weights, then the weights after each batch."""
        weights = copied(iterator)
        if not self._begun:
            self.worker.run.begin(weights)
            self._begun = True
        else:
            self.worker.run.commit(weights, self.worker.trained.popleft())

    def resume(self) -> None:
        """Does nothing: nothing was paused."""

    def destroy(self) -> None:
        """Does nothing: published versions stay."""


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters under their Hugging Face names; tied ones once."""
    return copied(model.named_parameters())


def copied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors by name, as copies in the processor's memory."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors}
