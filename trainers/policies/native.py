"""Our own decoder-only transformer in plain torch, of the Qwen3 and Llama families.

One module serves the trainer (whole sequences, gradients) and the embedded engine (a KV cache, no gradients),
so they differ in rounding only. Checkpoints are ordinary Hugging Face folders (`config.json`,
`model.safetensors`, `tokenizer.json`, `chat_template.jinja`), which other tools can read and write, too.

Left to `policies/transformers.py`: sliding windows, RoPE scaling, biases, mixture of experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harnessgym.errors import PolicyError
from harnessgym.tokens import IdArray
from trainers.packing import PackedSpan, Routing, gathered, pack, packed_size
from trainers.policies import native_weights
from trainers.policies.native_config import NativeConfig
from trainers.policy import Policy

if TYPE_CHECKING:
    from trainers.policies.kv_cache import KVCache


def projected(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`; a plain linear layer is computed without the overhead of a module call, because engines do
    this for every token.
    """
    return F.linear(x, layer.weight) if type(layer) is nn.Linear else layer(x)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; Qwen3 also normalises queries and keys."""

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.eps = config.rms_norm_eps
        self.qkv_proj: nn.Module = nn.Linear(
            config.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False
        )
        self.o_proj: nn.Module = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.Parameter(torch.ones(self.head_dim)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(self.head_dim)) if config.qk_norm else None

    def project(self, x_BTE: Tensor, cos_BT1D: Tensor, sin_BT1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, D], keys and values [B, kv_heads, T, D], rotated to their positions."""
        batch, length, _ = x_BTE.shape
        qkv = projected(self.qkv_proj, x_BTE).view(
            batch, length, self.heads + 2 * self.kv_heads, self.head_dim
        )
        qk, v = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            weight = torch.cat((self.q_norm.expand(self.heads, -1), self.k_norm.expand(self.kv_heads, -1)))
            qk = _rms_norm(qk, weight, self.eps)
        q, k = torch.split(_rotate(qk, cos_BT1D, sin_BT1D), [self.heads, self.kv_heads], dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention output [B, T, hidden]; `mask` is additive [B, 1, T, S], or None for plain causal
        attention.
        """
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads
        )
        return projected(self.o_proj, out.transpose(1, 2).flatten(2))

    def attend_spans(
        self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, spans: Sequence[PackedSpan]
    ) -> Tensor:
        """Attention output [1, N, hidden] of packed rows (B is 1)."""
        outputs = []
        for span in spans:
            q = gathered(q_BHND, span.queries_SQ)
            k = gathered(k_BHND, span.keys_SK)
            v = gathered(v_BHND, span.keys_SK)
            mask = None if span.mask_SQK is None else span.mask_SQK[:, None]
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads
            )
            outputs.append(out.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, span.real))
        return projected(self.o_proj, torch.cat(outputs)[None])

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """`attend` for one query per sequence; `mask` is [B * kv_heads, 1, S]."""
        # The queries that share a key head are treated as a sequence of that head, so keys and values are
        # read once. In float32 two plain products are faster on CPUs than the fused kernel; in bfloat16 the
        # kernel is used, because it accumulates in float32.
        shape = (len(q) * self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        grouped = q.reshape(shape)
        k = k.flatten(0, 1)
        v = v.flatten(0, 1)
        if q.dtype == torch.float32:
            scores = torch.baddbmm(mask, grouped, k.transpose(1, 2), alpha=self.head_dim**-0.5)
            out = torch.bmm(scores.softmax(-1), v)
        else:
            out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
        return projected(self.o_proj, out.reshape(len(q), 1, self.heads * self.head_dim))


class DecoderLayer(nn.Module):
    """One decoder layer: attention and a gated feed-forward net, both pre-normalised."""

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.gate_up_proj: nn.Module = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj: nn.Module = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.input_layernorm = nn.Parameter(torch.ones(config.hidden_size))
        self.post_attention_layernorm = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def pre_attention(self, x: Tensor) -> Tensor:
        """The normalised residual stream, the input of attention."""
        return _rms_norm(x, self.input_layernorm, self.eps)

    def forward(
        self, x_BTE: Tensor, cos_BT1D: Tensor, sin_BT1D: Tensor, spans: Sequence[PackedSpan] = ()
    ) -> Tensor:
        """The residual stream after this layer, for whole sequences or for a packed one with its spans."""
        attention = self.self_attn
        q, k, v = attention.project(self.pre_attention(x_BTE), cos_BT1D, sin_BT1D)
        attended = attention.attend_spans(q, k, v, spans) if spans else attention.attend(q, k, v, None)
        return self.feed_forward(x_BTE + attended)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The residual stream after the feed-forward net."""
        normed = _rms_norm(x, self.post_attention_layernorm, self.eps)
        gate, up = projected(self.gate_up_proj, normed).chunk(2, dim=-1)
        return x + projected(self.down_proj, F.silu(gate) * up)


class NativePolicy(Policy):
    """The language model. `forward` scores whole sequences; `forward_cached` extends cached ones."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = config.vocab_size
        self.context = config.max_position_embeddings
        self.hidden_size = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self._blocks = tuple(block for block in self.layers if isinstance(block, DecoderLayer))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        cos, sin = _rotary_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    @property
    def blocks(self) -> tuple[DecoderLayer, ...]:
        """The decoder layers."""
        return self._blocks

    def pass_size(self, rows: Sequence[IdArray]) -> int:
        """Tokens of the packed sequence, in which shared prefixes stand once."""
        return packed_size(rows)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits [B, T, vocab] of whole, right-padded sequences (padding never reaches a real token's
        logits).
        """
        length = ids_BT.shape[1]
        cos = self.cos[None, :length, None]
        sin = self.sin[None, :length, None]
        x = F.embedding(ids_BT, self.embed_tokens.weight)
        with self.autocast():
            for layer in self.blocks:
                x = layer(x, cos, sin)
            return self.logits(x)

    def hidden(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        routing: Routing = None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream after the last layer before each token with mask 1, and these tokens."""
        if routing is not None and any(routing):
            raise PolicyError(
                "The rows have routed experts, and this policy has no experts: another model sampled them."
            )
        packed = pack(rows, self.device)
        before_M, targets_M = packed.trained(masks)
        cos = self.cos[packed.positions_N][None, :, None]
        sin = self.sin[packed.positions_N][None, :, None]
        x = F.embedding(packed.ids_N[None], self.embed_tokens.weight)
        with self.autocast():
            for layer in self.blocks:
                if self.checkpointing and torch.is_grad_enabled():
                    x = checkpoint(layer, x, cos, sin, packed.spans, use_reentrant=False)
                else:
                    x = layer(x, cos, sin, packed.spans)
        return x[0].index_select(0, before_M), targets_M

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and vocabulary projection of hidden states [..., hidden]."""
        x = self.features(x)
        return F.linear(x, self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight)

    def features(self, x: Tensor) -> Tensor:
        """Final norm of hidden states."""
        return _rms_norm(x, self.norm, self.config.rms_norm_eps)

    def trunk(self) -> "NativePolicy":
        """A copy without the vocabulary's projection."""
        copy = NativePolicy(replace(self.config, tie_word_embeddings=True))
        copy.products = self.products
        copy.checkpointing = self.checkpointing
        copy.load_state_dict(
            {name: tensor for name, tensor in self.state_dict().items() if name != "lm_head.weight"}
        )
        return copy

    def linear_layers(self) -> tuple[str, ...]:
        """The projections of a block by their Hugging Face names."""
        return native_weights.PROJECTIONS

    def unfuse(self, layers: Sequence[str]) -> None:
        """Split the fused projections that have one of these layers."""
        native_weights.unfuse(self, layers)

    def published(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of all weights under their Hugging Face names, with adapters merged."""
        return native_weights.published(self, state)

    def state_dict_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hugging Face tensors in the layout of `state_dict()`. Raises `PolicyError` if they do not fit."""
        return {name: torch.cat(parts) for name, parts in native_weights.parts(self, weights).items()}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy Hugging Face tensors into the policy. Raises `PolicyError` if they do not fit."""
        # Part by part: joined, they would take their memory once more.
        by_name = native_weights.parts(self, weights)
        state = self.state_dict()
        for name, parts in by_name.items():
            rows = torch.split(state[name], [len(part) for part in parts])
            for part, own in zip(parts, rows, strict=True):
                own.copy_(part)

    @torch.inference_mode()
    def forward_cached(
        self,
        ids_BT: Tensor,
        start_B: Tensor,
        cache: "KVCache",
        rows: slice | Tensor,
        last_B: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, T, hidden] of tokens appended to cache rows that already hold `start_B` tokens
        each.

        `rows` is a slice of contiguous rows (for decoding, without a copy) or a row index [B] (for prefill).
        With `last_B` only the hidden states of those positions, [B, 1, hidden], are returned.
        """
        # Right padding in `ids_BT` writes keys past a sequence's end. The mask hides them until later tokens
        # overwrite them. With `last_B` the last layer computes keys and values of all tokens, which later
        # tokens attend to, but queries and the feed-forward net for one position per row only.
        length = ids_BT.shape[1]
        position_BT = start_B[:, None] + torch.arange(length, device=ids_BT.device)
        horizon = int(position_BT.max()) + 1
        fresh = horizon == length > 1
        mask = None if fresh or length == 1 else self._mask(position_BT, horizon)[:, None]
        one_mask = self._one_mask(position_BT, horizon) if length == 1 else None
        cos = self.cos[position_BT][:, :, None]
        sin = self.sin[position_BT][:, :, None]
        row_B = torch.arange(cache.rows, device=ids_BT.device)[rows] if isinstance(rows, slice) else rows
        slots = cache.slots(row_B, position_BT)
        x = F.embedding(ids_BT, self.embed_tokens.weight)
        for depth, layer in enumerate(self.blocks):
            attention = layer.self_attn
            q, k, v = attention.project(layer.pre_attention(x), cos, sin)
            cache.write(depth, slots, k, v)
            if not fresh:
                k, v = cache.keys[depth][rows, :, :horizon], cache.values[depth][rows, :, :horizon]
            if last_B is not None and depth == len(self.blocks) - 1:
                batch_B = torch.arange(len(last_B), device=ids_BT.device)
                x, q = x[batch_B, last_B][:, None], q[batch_B, :, last_B]
                one_mask = self._one_mask(position_BT[batch_B, last_B][:, None], horizon)
            attended = (
                attention.attend(q, k, v, mask)
                if one_mask is None
                else attention.attend_one(q, k, v, one_mask)
            )
            x = layer.feed_forward(x + attended)
        return x

    def _mask(self, position_BT: Tensor, horizon: int) -> Tensor:
        """Additive mask [B, T, horizon] that hides the positions after each token's own."""
        hidden = torch.arange(horizon, device=position_BT.device) > position_BT[:, :, None]
        zeros = torch.zeros(hidden.shape, dtype=self.norm.dtype, device=position_BT.device)
        return zeros.masked_fill_(hidden, float("-inf"))

    def _one_mask(self, position_B1: Tensor, horizon: int) -> Tensor:
        """Additive mask [B * kv_heads, 1, horizon] for one query per sequence."""
        return self._mask(position_B1, horizon).repeat_interleave(self.config.num_key_value_heads, dim=0)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (arXiv 1910.07467)."""
    # In float32 it is written out, because torch's fused norm is slow on CPUs.
    if x.dtype != torch.float32:
        return F.rms_norm(x, x.shape[-1:], None, eps) * weight
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(weight.new_full((), eps), norm, norm, value=1 / x.shape[-1]).rsqrt() * weight


def _rotate(x_BTHD: Tensor, cos_BT1D: Tensor, sin_BT1D: Tensor) -> Tensor:
    return torch.addcmul(x_BTHD * cos_BT1D, x_BTHD.roll(x_BTHD.shape[-1] // 2, -1), sin_BT1D)


def _rotary_table(config: NativeConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, head_dim] (RoPE, arXiv 2104.09864, in the half-split layout of Llama and
    Qwen).

    The first half of the sines is negated, as `_rotate` expects.
    """
    inverse = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), inverse)
    return angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), dim=-1)
