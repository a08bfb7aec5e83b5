"""Settings of one embedded engine process, above the server they configure."""

from functools import cached_property
from pathlib import Path
from typing import Literal

from harnessgym.config import Config
from harnessgym.run_config.run import Implementation
from trainers.weights.settings import AgentSettings


class EngineSettings(Config):
    """Settings of `harnessgym engine MODEL_DIR`."""

    model: Path
    """Hugging Face folder: config.json, model.safetensors and, for text and stop strings, tokenizer.json."""
    implementation: Implementation = "auto"
    """What computes it. native: our module of Qwen3 and Llama. transformers: any model, through its cache,
    which is slower. auto: native where it computes the architecture."""
    served_model_name: str | None = None
    """Name requests may use besides the folder's path; the folder's own name if not given."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one (the line printed at start names it)."""
    fd: int | None = None
    """A listening socket inherited from the parent, used in place of host and port."""
    worker_id: str = "engine-0"
    """Name of this engine in the workers table and at the proxy."""
    max_batch: int = 32
    """Sequences that decode together; more wait."""
    cached_sequences: int = 32
    """Finished sequences whose keys and values are kept for prompts that share a prefix with them."""
    max_length: int | None = None
    """Longest prompt plus completion, in tokens; the model's own limit if not given."""
    prefill_tokens: int = 4_096
    """Prompt tokens (padding included) computed between two decoding steps, unless one sequence alone
    needs more."""
    threads: int = 1
    """Torch threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where weights and caches are. cuda: the first GPU that the process sees (CUDA_VISIBLE_DEVICES)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights, keys and values."""
    seed: int = 0
    """Seed for requests without a seed of their own."""
    agent: AgentSettings | None = None
    """Follow a policy's versions in the trace store; without it the engine serves `model` as version 0."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Model names that requests may use, the public one first."""
        return (self.served_model_name or self.model.resolve().name, str(self.model))
