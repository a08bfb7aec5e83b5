"""Computes what docs/models.md says of each family, and writes its table.

    python -m tests.suites.families

`test_families.py` compares the page with what the families' models are; figures may differ by rounding.
"""

import logging
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.trainers.policies.families import FAMILIES, SERVED, tiny_model
from trainers.engine.runners.transformers import TransformersRunner
from trainers.policies.loading import load_served
from trainers.policies.model_folder import read_config, why_not_native
from trainers.policies.transformers import TransformersPolicy, load_transformers
from trainers.policy import token_logprobs

PAGE = Path(__file__).parents[2] / "docs/models.md"
TITLE = "## Families"
_HEAD = (
    "| family | for example | native too | rows in training | largest difference of a log-probability | the run's own engines | "
    "vLLM's CPU build |\n"
    "|---|---|---|---|---|---|---|"
)
_EXAMPLES = {
    "qwen2": "Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-30B-A3B",
    "qwen3_5": "Qwen3.5 (text)",
    "llama3": "Llama 3.1 to 3.3",
    "mistral": "Mistral 7B",
    "gemma3": "Gemma 3 (text)",
    "gemma2": "Gemma 2",
    "phi3": "Phi-3, Phi-4",
    "glm4": "GLM-4",
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "DeepSeek-V3, R1",
    "olmo2": "OLMo 2",
    "smollm3": "SmolLM3",
    "granite": "Granite 3",
    "granitemoehybrid": "Granite 4 (hybrid)",
    "mamba2": "Mamba 2",
    "llama4": "Llama 4 (text)",
    "phi3_longrope": "Phi-3, long context",
}
_UNSERVED = {
    "gpt_oss": "does not run there",
    "qwen3_5": "does not run there",
    "deepseek_v3": "differs from transformers",
}


@dataclass(frozen=True)
class FamilyRow:
    """A family's row in the table."""

    name: str
    native: bool
    padded_because: str
    difference: float
    """Largest difference of a log-probability from plain transformers, in nats."""
    engine: str
    """How the embedded engine serves it."""

    def text(self) -> str:
        """As Markdown."""
        rows = f"one by one: {self.padded_because}" if self.padded_because else "packed, shared prefixes once"
        served = "the same to 1e-4" if self.name in SERVED else _UNSERVED.get(self.name, "not tried")
        cells = (
            f"`{self.name}`", _EXAMPLES[self.name], "yes" if self.native else "", rows, f"{self.difference:.0e}", self.engine, served
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def family_row(name: str) -> FamilyRow:
    """Measures a family's tiny model."""
    model = tiny_model(name)
    draw = np.random.default_rng(3)
    prompt = draw.integers(3, 97, 20)
    rows = [np.concatenate((prompt, draw.integers(3, 97, size))).astype(np.int32) for size in (9, 17, 4)]
    masks = [(np.arange(len(row)) > 0).astype(np.int32) for row in rows]
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        model.save_pretrained(place)
        policy = load_transformers(Path(place))
        native = not why_not_native(read_config(Path(place)))
        found = policy.logprobs(rows, masks)
        ids = [torch.from_numpy(row[None]).long() for row in rows]
        expected = torch.cat([token_logprobs(model(row).logits, row)[0, 1:] for row in ids])
        engine = "native" if native else _engine_of(Path(place))
    return FamilyRow(name, native, policy.padded_because, float((found - expected).abs().max()), engine)


def _engine_of(folder: Path) -> str:
    """How the engine serves a folder's model through transformers' cache."""
    policy = load_served(folder)
    assert isinstance(policy, TransformersPolicy)
    runner = TransformersRunner(policy, 2, policy.context)
    assert not runner.uncached_because
    assert not runner.unshared_because
    rows = "one by one" if runner.alone_because else "together"
    return f"{rows}, {'any prefix' if runner.cache.croppable == math.inf else 'whole contexts'}"


def table() -> str:
    """All families, as Markdown."""
    return "\n".join([_HEAD, *(family_row(name).text() for name in FAMILIES)])


def main() -> None:
    """Write the table into the page."""
    logging.disable(logging.WARNING)
    page = PAGE.read_text()
    start = page.index("|", page.index(TITLE))
    end = page.index("\n\n", start)
    PAGE.write_text(page[:start] + table() + page[end:])
    print(f"Wrote {PAGE}.")


if __name__ == "__main__":
    main()
