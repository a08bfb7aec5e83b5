"""The critic: a value function V over the tokens of a rollout, for PPO.

It is a transformer of its own, which starts as a copy of the policy with a head of one number in place of the
vocabulary. The policy's trunk is not shared: what is published stays an ordinary Hugging Face model that any
engine loads, the value loss cannot pull at what the policy says, and the two have learning rates and clipping
of their own. That costs the memory and the passes of a second model. The head starts at zero, so the first
values are 0 and the first advantages are the returns.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from trainers.packing import Packed
from trainers.policy import DecoderLayer, Policy


class Critic(nn.Module):
    """V of what stands before a token: one number from the trunk's last hidden state."""

    def __init__(self, start: Policy) -> None:
        """A copy of the policy's weights; the policy is whole, in no shards."""
        super().__init__()
        self.trunk = Policy(replace(start.config, tie_word_embeddings=True))
        self.trunk.products = start.products
        self.trunk.load_state_dict(
            {name: tensor for name, tensor in start.state_dict().items() if name != "lm_head.weight"}
        )
        self.head = nn.Linear(start.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def blocks(self) -> tuple[DecoderLayer, ...]:
        """Its layers."""
        return self.trunk.blocks

    def values(self, packed: Packed, before_M: Tensor) -> Tensor:
        """V at these places of packed rows, float32 [M]. The value of the state that a token is sampled in is
        that of the token before it; see `Packed.trained`.
        """
        hidden_ME = self.trunk.normed(self.trunk.hidden(packed).index_select(0, before_M))
        return (torch.mv(hidden_ME, self.head.weight[0]) + self.head.bias).float()
