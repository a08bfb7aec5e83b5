"""What TRL's asynchronous trainer needs to run on a CPU: it asks for a Hopper GPU in three places.

1. `requests`, which its client of vLLM needs even if nothing talks to vLLM: the extra `trl` installs it.
2. The peak speed of the GPU, which it asks CUDA for: here a constant, which only its utilisation metric uses.
3. Attention over a packed tree of samples by a FlashAttention-3 kernel: here torch's own, segment by segment.
"""

import torch
from torch.nn import functional as F
from transformers import AttentionInterface
from trl.experimental.async_grpo import async_grpo_trainer, packing


def tree_attention(
    module, query, key, value, _mask, *, tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k, scaling, **_
):
    """Each segment's queries see the keys of its path from the root; the last of them are its own."""
    query, key, value = (
        query[0],
        key[0].index_select(1, tree_kv_index),
        value[0].index_select(1, tree_kv_index),
    )
    out = []
    for q, k in zip(
        tree_cu_seqlens_q.unfold(0, 2, 1).tolist(), tree_cu_seqlens_k.unfold(0, 2, 1).tolist(), strict=True
    ):
        seen = torch.ones(q[1] - q[0], k[1] - k[0], dtype=torch.bool).tril(k[1] - k[0] - (q[1] - q[0]))
        sides = (query[:, q[0] : q[1]], key[:, k[0] : k[1]], value[:, k[0] : k[1]])
        out.append(F.scaled_dot_product_attention(*sides, attn_mask=seen, scale=scaling, enable_gqa=True))
    return torch.cat(out, dim=1).transpose(0, 1)[None], None


def install():
    """Put the shims in TRL's place."""
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12
    register = packing.register_tree_attention

    def registered():
        register()
        AttentionInterface.register(packing.TREE_ATTENTION, tree_attention)

    async_grpo_trainer.register_tree_attention = registered


def train(settings):
    """`examples/trl_async.py` on a CPU."""
    from examples.trl_async import train as train_example

    install()
    train_example(settings)
