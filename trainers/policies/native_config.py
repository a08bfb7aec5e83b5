"""The architectures that the native policy computes, and their shape. Without torch, so that a run file is
checked quickly.
"""

from dataclasses import dataclass

from harnessgym.errors import PolicyError

_ARCHITECTURES = {"Qwen3ForCausalLM": True, "LlamaForCausalLM": False}
"""Architecture name to "normalises queries and keys per head"."""
_COMPUTED = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "partial_rotary_factor": 1.0}
"""Options that other checkpoints may set, with the only value that this module computes."""


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """Shape of a policy, named as in `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 2_048
    qk_norm: bool = True

    @classmethod
    def from_hf(cls, raw: dict[str, object], where: str = "config.json") -> "NativeConfig":
        """Read a Hugging Face config. Raises `PolicyError` for an architecture or option this module does
        not compute.
        """
        architecture = (raw.get("architectures") or ["Qwen3ForCausalLM"])[0]  # type: ignore[index]
        if architecture not in _ARCHITECTURES:
            raise PolicyError(
                f"{where}: architecture {architecture!r} is not supported; known: "
                f"{', '.join(_ARCHITECTURES)}."
            )
        if raw.get("rope_scaling") or raw.get("use_sliding_window"):
            raise PolicyError(f"{where}: RoPE scaling and sliding windows are not supported.")
        heads = int(raw["num_attention_heads"])  # type: ignore[call-overload]
        rope = raw.get("rope_parameters") or {}
        if isinstance(rope, dict) and rope.get("rope_type", "default") != "default":
            raise PolicyError(f"{where}: RoPE type {rope['rope_type']!r} is not supported.")
        for name, ours in _COMPUTED.items():
            values_given = [
                each
                for each in (raw.get(name), rope.get(name) if isinstance(rope, dict) else None)
                if each is not None
            ]
            if any(each != ours for each in values_given):
                raise PolicyError(f"{where}: {name} = {values_given[-1]!r} is not supported, only {ours!r}.")
        if raw.get("quantization_config"):
            raise PolicyError(f"{where}: quantised weights are not supported; use the original weights.")
        values = {
            "head_dim": int(raw["hidden_size"]) // heads,  # type: ignore[call-overload]
            "rope_theta": rope.get("rope_theta", 10_000.0) if isinstance(rope, dict) else 10_000.0,
            "num_key_value_heads": heads,
            **{name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None},
            "qk_norm": _ARCHITECTURES[architecture],
        }
        return cls(**values)

    def to_hf(self) -> dict[str, object]:
        """The config as transformers reads it."""
        values: dict[str, object] = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "qk_norm"
        }
        architecture = next(name for name, norm in _ARCHITECTURES.items() if norm == self.qk_norm)
        model_type = "qwen3" if self.qk_norm else "llama"
        return {
            "architectures": [architecture],
            "model_type": model_type,
            "hidden_act": "silu",
            "attention_bias": False,
            **values,
        }
