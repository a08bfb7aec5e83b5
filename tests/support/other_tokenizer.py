"""A copy of a policy whose tokenizer numbers the ordinary tokens differently."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

EMBEDDING = "model.embed_tokens.weight"


def with_other_ids(policy, folder):
    """Copy a policy's folder and reverse the ids of ordinary tokens, in the tokenizer and in the weights
    alike.
    """
    shutil.copytree(policy, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    kept = {token["id"] for token in tokenizer["added_tokens"]}
    ordinary = sorted(set(vocabulary.values()) - kept)
    new = dict(zip(ordinary, reversed(ordinary), strict=True))
    tokenizer["model"]["vocab"] = {text: new.get(token, token) for text, token in vocabulary.items()}
    path.write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    order = torch.tensor([new.get(token, token) for token in range(len(weights[EMBEDDING]))])
    weights[EMBEDDING] = weights[EMBEDDING][order].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
