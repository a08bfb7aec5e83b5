"""A policy like another one, whose tokenizer gives every ordinary token another id."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

EMBEDDING = "model.embed_tokens.weight"


def with_other_ids(policy, folder):
    """A copy of a policy's folder: ids of ordinary tokens are reversed, in the tokenizer and in the weights alike."""
    shutil.copytree(policy, folder)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    vocabulary, kept = told["model"]["vocab"], {token["id"] for token in told["added_tokens"]}
    ordinary = sorted(set(vocabulary.values()) - kept)
    new = dict(zip(ordinary, reversed(ordinary), strict=True))
    told["model"]["vocab"] = {text: new.get(token, token) for text, token in vocabulary.items()}
    path.write_text(json.dumps(told))
    weights = load_file(folder / "model.safetensors")
    order = torch.tensor([new.get(token, token) for token in range(len(weights[EMBEDDING]))])
    weights[EMBEDDING] = weights[EMBEDDING][order].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
