"""Any causal language model that transformers loads, as a policy.

Where a model's attention can be replaced, rows are packed and shared prefixes are computed once, as in the
native policy. Whether that is exact is not looked up in a list of families: it is tried when the model is
loaded, on a few tokens, against the model's own attention. Other models (linear attention, state spaces)
compute each row by itself, in a batch that is padded at the end, where padding reaches no real token.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging as transformers_logging

from harnessgym.errors import PolicyError
from harnessgym.run_config.run import PackedAttention
from harnessgym.tokens import IdArray
from trainers.packing import Index, Routing, pack, packed_size, sharing_keys
from trainers.policies.model_head import body_of, find_head
from trainers.policies.routing_replay import RoutingReplay
from trainers.policies.span_attention import (
    SPANS,
    SpanLog,
    SpansUnsupported,
    attend_with,
    register,
    spans_product,
)
from trainers.policy import Policy, chosen_logprobs

log = logging.getLogger(__name__)

_PREFIX = "model."
"""Of this module's tensors, before their names in the model."""
_ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that are computed over packed rows."""
_BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Kinds of RoPE whose angles depend on the length of the longest row."""
_ROUTERS = frozenset({"gate", "router"})
"""Linear layers that choose experts. They get no adapters."""
_UNBOUNDED = 1 << 20
"""Context of a model that states none."""
_TRIED_WINDOW = 64
"""Widest sliding window beyond which the trial's rows reach."""
_CLOSE = 1e-2
"""Largest difference of log-probabilities at which packed rows count as the model's own."""


class TransformersPolicy(Policy):
    """A model of transformers as a policy."""

    def __init__(
        self, model: PreTrainedModel, *, packed: bool = True, attention: PackedAttention = "sdpa"
    ) -> None:
        """`model` becomes the policy's own. Its dropout stays off, as in engines.

        With `packed` its attention is replaced, by `attention`, if rows can be packed, and then it takes no
        cache. Raises `PolicyError` if the model's logits do not follow from its last hidden states.
        """
        super().__init__()
        self._attention = attention
        self.model = model.eval()
        _turn_off_dropout(model)
        text = model.config.get_text_config()
        self.vocabulary = int(text.vocab_size)
        self.context = int(getattr(text, "max_position_embeddings", None) or _UNBOUNDED)
        self.hidden_size = int(text.hidden_size)
        self.constant_rope = _constant_rope(text)
        """Length up to which the model's RoPE does not depend on the longest row. If a batch has a longer
        row, each row has its own pass. None: RoPE depends on no length."""
        if self.constant_rope is not None:
            # The processes of a sharded policy must make equally many passes over a batch.
            self.one_process_because = (
                "its RoPE depends on the length of a row, so long rows have passes of their own"
            )
        self.routing_replay = RoutingReplay.of_model(model)
        # Not as submodules, whose weights would count twice.
        self._head = (find_head(model, self.vocabulary),)
        self.padded_because = self._why_padded() if packed else "it keeps its own attention"
        """Why rows are padded instead of packed; empty if they are packed."""

    @property
    def body(self) -> nn.Module:
        """What makes last hidden states of tokens: the model without its head."""
        return body_of(self.model)

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The decoder layers."""
        names = set(self.model._no_split_modules or ())  # noqa: SLF001
        blocks = tuple(
            module for module in self.model.modules() if type(module).__name__.removeprefix("FSDP") in names
        )
        if blocks:
            return blocks
        lists = [tuple(module) for module in self.model.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=())

    def recompute_activations(self) -> None:
        """Keep a block's input only. Raises `PolicyError` if the model cannot do that."""
        if not self.model.supports_gradient_checkpointing:
            raise PolicyError(
                f"{type(self.model).__name__} cannot compute activations again: set "
                "trainer.gradient_checkpointing = false."
            )
        self.model.activation_checkpointing_enable(
            {"use_reentrant": False, "context_fn": self.routing_replay.checkpoint_contexts}
        )
        super().recompute_activations()

    def pass_size(self, rows: Sequence[IdArray]) -> int:
        """Tokens that a pass over these rows computes, padding included."""
        parts = [[rows[index] for index in part] for part in self._passes(rows)]
        if self.padded_because:
            return sum(len(part) * max(map(len, part)) for part in parts)
        return sum(map(packed_size, parts))

    def hidden(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        routing: Routing = None,
    ) -> tuple[Tensor, Tensor]:
        """The model's last hidden state before each token with mask 1, and these tokens."""
        # Layers recompute only if they are in training mode; what they contain is not, so nothing is dropped.
        for block in self.blocks if self.checkpointing else ():
            block.training = torch.is_grad_enabled()
        one_pass = self._padded if self.padded_because else self._packed
        with self.autocast():
            found = [
                one_pass(
                    [rows[index] for index in part],
                    [masks[index] for index in part],
                    None if routing is None else [routing[index] for index in part],
                )
                for part in self._passes(rows)
            ]
        hidden_ME, targets_M = (torch.cat(each) for each in zip(*found, strict=True))
        return hidden_ME, targets_M

    def logits(self, hidden_ME: Tensor) -> Tensor:
        """Logits, with whatever the model does after its projection (bounds, scales)."""
        return self._head[0](hidden_ME)

    def features(self, hidden_ME: Tensor) -> Tensor:
        """The model normalises its last hidden states itself."""
        return hidden_ME.to(self._parameter_type())

    def trunk(self) -> "TransformersPolicy":
        """A copy without the vocabulary's projection."""
        # Together, since the model's blocks refer to it where they recompute activations.
        model, routing_replay = copy.deepcopy((self.model, self.routing_replay))
        head = model.get_output_embeddings()
        for name, module in model.named_modules():
            if module is head:
                model.set_submodule(name, nn.Identity())
                break
        trunk = TransformersPolicy.__new__(TransformersPolicy)
        Policy.__init__(trunk)
        trunk.model, trunk.routing_replay = model, routing_replay
        for name in (
            "vocabulary",
            "context",
            "hidden_size",
            "constant_rope",
            "padded_because",
            "products",
            "checkpointing",
        ):
            setattr(trunk, name, getattr(self, name))
        return trunk

    def linear_layers(self) -> tuple[str, ...]:
        """Names of the linear layers in its blocks, without those that choose experts."""
        names = [
            name.rpartition(".")[2]
            for block in self.blocks
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear)
        ]
        return tuple(name for name in dict.fromkeys(names) if name not in _ROUTERS)

    def unfuse(self, layers: Sequence[str]) -> None:
        """Nothing is fused here."""

    def published(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of all weights as checkpoints of this family have them, with adapters merged."""
        tensors = self.state_dict() if state is None else state
        tensors = tensors if self.lora is None else self.lora.merged(tensors)
        tied = self.model.all_tied_weights_keys or {}
        own = {_plain(name): tensor for name, tensor in tensors.items()}
        kept = {name: tensor for name, tensor in own.items() if name not in tied}
        reverted = revert_weight_conversion(self.model, kept)
        return {name: tensor.detach().clone().contiguous() for name, tensor in reverted.items()}

    def state_dict_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A checkpoint's tensors in the layout of `state_dict()`. Raises `PolicyError` if they do not fit."""
        converted = self._converted(weights)
        return {
            name: torch.zeros(target.shape, dtype=target.dtype)
            if ".lora_" in name
            else converted[_plain(name)]
            for name, target in self.state_dict().items()
        }

    def _why_padded(self) -> str:
        """Why rows cannot be packed; empty if they can. Then the model's attention is replaced."""
        config = self.model.config.get_text_config()
        others = set(getattr(config, "layer_types", None) or ()) - _ATTENTION
        if others:
            return f"it has layers of the kind {min(others)!r}"
        if self.model._is_stateful:  # noqa: SLF001
            return "it keeps a state from token to token"
        before = self.model.config._attn_implementation  # noqa: SLF001
        try:
            reason = self._trial()
        except (SpansUnsupported, TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
            reason = f"its attention cannot be replaced ({error})"
        if reason:
            self.model.set_attn_implementation(before)
        return reason

    @torch.no_grad()
    def _trial(self) -> str:
        """Compares a few packed rows with the model's own attention. Returns how they differ, or nothing."""
        draw = np.random.default_rng(0)
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        own = 8 + (window if isinstance(window, int) and window <= _TRIED_WINDOW else 0)
        prompt, *ends = (draw.integers(0, self.vocabulary, size) for size in (12, own, own + 3, own + 5))
        rows = [
            np.concatenate(parts).astype(np.int32)
            for parts in ((prompt, ends[0]), (prompt, ends[1]), ends[2:])
        ]
        masks = [(np.arange(len(row)) > 0).astype(np.int32) for row in rows]
        expected_M = torch.cat(
            [self._tried(*self._padded([row], [mask])) for row, mask in zip(rows, masks, strict=True)]
        )
        self.model.set_attn_implementation(_registered(self._attention))
        span_log = SpanLog()
        found_M = torch.cat(
            [
                self._tried(
                    *self._packed([rows[at] for at in part], [masks[at] for at in part], span_log=span_log)
                )
                for part in self._passes(rows)
            ]
        )
        difference = float((found_M - expected_M).abs().max())
        if not difference <= _CLOSE:
            return f"packed rows differ from its own attention by {difference:.2g} nats"
        slides = window is not None and getattr(config, "use_sliding_window", True)
        if slides and not any(span_log.windows):
            return "its layers do not say how far they see"
        return ""

    def _tried(self, hidden_ME: Tensor, targets_M: Tensor) -> Tensor:
        return chosen_logprobs(self._scores(hidden_ME, 1.0), targets_M)

    def _packed(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        routing: Routing = None,
        span_log: SpanLog | None = None,
    ) -> tuple[Tensor, Tensor]:
        packed = pack(rows, self.device, sharing_keys(rows, routing))
        before_M, targets_M = packed.trained(masks)
        logged = {} if span_log is None else {"span_log": span_log}
        with self._replaying(routing, packed.paths, len(packed.ids_N)):
            out = self.body(
                input_ids=packed.ids_N[None],
                position_ids=packed.positions_N[None],
                use_cache=False,
                packed=packed,
                **logged,
            )
        return out.last_hidden_state[0].index_select(0, before_M), targets_M

    def _padded(
        self,
        rows: Sequence[IdArray],
        masks: Sequence[IdArray],
        routing: Routing = None,
    ) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        for row, own in zip(rows, ids, strict=True):
            own[: len(row)] = row
        ids_BT = torch.from_numpy(ids).to(self.device)
        chosen = np.concatenate([np.flatnonzero(mask) + number * width for number, mask in enumerate(masks)])
        places_M = torch.from_numpy(chosen).to(self.device)
        paths = [np.arange(len(row)) + number * width for number, row in enumerate(rows)]
        with self._replaying(routing, paths, ids_BT.numel()):
            out = self.body(input_ids=ids_BT, use_cache=False)
        hidden_NE = out.last_hidden_state.flatten(0, 1)
        return hidden_NE.index_select(0, places_M - 1), ids_BT.flatten()[places_M]

    def _replaying(
        self, routing: Routing, paths: Sequence[Index], tokens: int
    ) -> AbstractContextManager[None]:
        """The context of a pass over `tokens` tokens, of which `paths` are those of each row."""
        replay = self.routing_replay
        return replay.replaying(replay.of_rows(routing, paths, tokens, self.device))

    def _passes(self, rows: Sequence[IdArray]) -> Iterator[list[int]]:
        """Which rows share a pass. In order, so that results are, too."""
        if self.constant_rope is None or max(map(len, rows)) <= self.constant_rope:
            yield list(range(len(rows)))
            return
        for index in range(len(rows)):
            yield [index]

    def _converted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A checkpoint's tensors under the names in the model."""
        targets = {_plain(name): tensor for name, tensor in self.state_dict().items() if ".lora_" not in name}
        tied: Mapping[str, str] = self.model.all_tied_weights_keys or {}
        if {name for name in weights if name not in tied} == targets.keys() - tied.keys():
            found = {name: weights[tied.get(name, name)] for name in targets}
        else:
            found = self._loaded_again(weights)
        for name, target in targets.items():
            if found[name].shape != target.shape:
                raise PolicyError(
                    f"Tensor {name!r} has shape {tuple(found[name].shape)}, config.json says "
                    f"{tuple(target.shape)}: use both files of one model."
                )
        return found

    def _loaded_again(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of another model that transformers makes of these weights."""
        try:
            with _without_reports():
                model, info = type(self.model).from_pretrained(
                    None,
                    config=copy.deepcopy(self.model.config),
                    state_dict=dict(weights),
                    dtype=self._parameter_type(),
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                )
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise PolicyError(f"The weights do not fit {type(self.model).__name__}: {error}") from error
        _check_loaded(info, "The weights")
        if info["unexpected_keys"]:
            name = min(info["unexpected_keys"])
            raise PolicyError(
                f"The weights have a tensor {name!r}, which {type(model).__name__} does not use."
            )
        return dict(model.state_dict())

    def _parameter_type(self) -> torch.dtype:
        return next(self.parameters()).dtype


def load_transformers(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    *,
    packed: bool = True,
    attention: PackedAttention = "sdpa",
) -> TransformersPolicy:
    """Load a model folder, to train it or, without `packed`, to serve it. Raises `PolicyError` if
    transformers cannot load it.
    """
    try:
        with _without_reports():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise PolicyError(f"transformers cannot load the model at {folder}: {error}") from error
    _check_loaded(info, f"The weights at {folder}")
    if info["unexpected_keys"]:
        log.warning(
            "%s has %d tensors that %s does not use, such as %s. They are not trained and not published.",
            folder,
            len(info["unexpected_keys"]),
            type(model).__name__,
            min(info["unexpected_keys"]),
        )
    policy = TransformersPolicy(model, packed=packed, attention=attention)
    if packed and policy.padded_because:
        log.warning(
            "%s: each row is computed by itself, without sharing prefixes, because %s.",
            type(model).__name__,
            policy.padded_because,
        )
    return policy


def _registered(attention: PackedAttention) -> str:
    """The name in transformers of an attention over packed rows."""
    if attention == "flex":
        # Importing it takes a second, for torch's compiler.
        from trainers.policies import flex_attention

        return register(flex_attention.NAME, attend_with(flex_attention.flex_product))
    return register(SPANS, attend_with(spans_product))


@contextmanager
def _without_reports() -> Iterator[None]:
    """transformers reports on what it loads; what matters of it are errors here."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def _check_loaded(info: Mapping[str, Any], where: str) -> None:
    """Raises `PolicyError` if tensors are missing or misshaped: transformers would draw them at random."""
    if info["missing_keys"]:
        name = min(info["missing_keys"])
        raise PolicyError(f"{where} have no tensor {name!r}; is this the model that config.json describes?")
    if info["mismatched_keys"]:
        name = min(map(str, info["mismatched_keys"]))
        raise PolicyError(f"{where} do not fit config.json: {name}. Use both files of one model.")


def _turn_off_dropout(model: PreTrainedModel) -> None:
    """Some layers read a probability of their own in training mode, in which layers recompute activations."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _plain(name: str) -> str:
    """A tensor's name in the model, without adapters."""
    return name.removeprefix(_PREFIX).replace(".base_layer", "")


def _constant_rope(config: Any) -> int | None:
    """The longest row whose RoPE does not depend on its length; None if none does."""
    ropes = getattr(config, "rope_parameters", None) or {}
    each = [rope for rope in (ropes, *ropes.values()) if isinstance(rope, Mapping)]
    if _BY_LENGTH.isdisjoint(rope.get("rope_type") for rope in each):
        return None
    limits = [rope.get("original_max_position_embeddings") for rope in each]
    original = getattr(config, "original_max_position_embeddings", None)
    known = [int(limit) for limit in (*limits, original) if limit]
    return min(known, default=int(config.max_position_embeddings))
