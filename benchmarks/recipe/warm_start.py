"""Makes the policy the quickstart starts from: `python -m benchmarks.recipe.warm_start`.

Builds a byte-level BPE tokenizer and trains a two-layer policy by supervised learning on imperfect
demonstrations: in 70 % of them the wrong attribute tool is called, always the same wrong one for a kind of
question. The policy learns the protocol and to copy names, ids and values, and its most likely action is
wrong: greedy decoding fails, one sample in four or so succeeds, and reinforcement learning has to change the
argmax, not sharpen it. Only item names and wordings of the training split are used.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.recipe.chat import Chat, Message
from environments.lookup.protocol import KINDS, SYSTEM_PROMPT, TOOLS
from environments.lookup.tasks import TEMPLATES, LookupQuestion, draw_question, item_names
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy

FOLDER = Path("environments/lookup/policy")
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PIECES = r" ?[A-Za-z]+|[0-9]|\n|[^A-Za-z0-9\n]+"
"""Words with their leading space, single digits, newlines alone (so that a generation prompt ends on a
token), the rest."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of the supervised stage."""

    seed: int = 0
    steps: int = 1_000
    batch: int = 24
    lr: float = 3e-3
    wrong: float = 0.7
    """Share of demonstrations that call the wrong tool."""
    init_std: float = 0.1
    """About 1 / sqrt(hidden size). At the usual 0.02 a net this narrow takes five times as long to learn
    to copy."""


def wrong_kind(kind: str) -> str:
    """The tool that most demonstrations call instead of the right one."""
    return KINDS[(KINDS.index(kind) + 1) % len(KINDS)]


def draw_training_question(random: Random) -> LookupQuestion:
    """A fresh question in the training split's names and wordings."""
    name, *others = random.sample(item_names("train"), 4)
    return draw_question(random, random.choice(KINDS), random.choice(TEMPLATES["train"]), name, others)


def demonstration(question: LookupQuestion, tool: str) -> list[Message]:
    """The messages of an episode in which `tool` reads the attribute."""
    catalog = question.catalog
    id_ = catalog.ids[question.name]
    value = catalog.call(tool, {"id": id_})
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question.text},
        {"role": "assistant", "content": None, "tool_calls": [_call("find", "name", question.name)]},
        {"role": "tool", "content": id_},
        {"role": "assistant", "content": None, "tool_calls": [_call(tool, "id", id_)]},
        {"role": "tool", "content": value},
        {"role": "assistant", "content": value},
    ]


def build_tokenizer(corpus: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer with ChatML control tokens; tool-call marks are single, visible tokens."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=640, special_tokens=list(CONTROL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<tool_call>", "</tool_call>")])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and the `tokenizer_config.json` with which transformers loads it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 1_024,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode_demonstration(chat: Chat, messages: list[Message]) -> tuple[list[int], list[int]]:
    """Ids and mask [T] of an episode; the mask is 1 on what the assistant says, its end token included."""
    ids: list[int] = []
    mask: list[int] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        for until, generate, sampled in ((index, True, 0), (index + 1, False, 1)):
            text = chat.text(messages[:until], TOOLS, generate=generate)
            new = chat.encode(text.removesuffix("\n") if sampled else text)[len(ids) :]
            ids += new
            mask += [sampled] * len(new)
    return ids, mask


def supervise(policy: NativePolicy, chat: Chat, settings: WarmStart) -> float:
    """Train from scratch on fresh demonstrations; returns the last batch's loss (nats per assistant
    token).
    """
    for module in policy.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=settings.init_std)
    random = Random(f"warm start {settings.seed}")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, total_steps=settings.steps, pct_start=0.1
    )
    loss = torch.zeros(())
    for step in range(settings.steps):
        batch = []
        for _ in range(settings.batch):
            question = draw_training_question(random)
            tool = wrong_kind(question.kind) if random.random() < settings.wrong else question.kind
            batch.append(encode_demonstration(chat, demonstration(question, tool)))
        longest = max(len(ids) for ids, _ in batch)
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in batch])
        mask_BT = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in batch])
        targets = torch.where(mask_BT == 1, ids_BT, -100)[:, 1:]
        loss = F.cross_entropy(policy(ids_BT)[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return float(loss.detach())


def _call(tool: str, argument: str, value: str) -> Message:
    return {"type": "function", "function": {"name": tool, "arguments": {argument: value}}}


def main() -> None:
    """Write the policy folder; the chat template in it is the one file not made here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=WarmStart().seed)
    parser.add_argument("--steps", type=int, default=WarmStart().steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    started = time.perf_counter()
    template, random = (FOLDER / "chat_template.jinja").read_text(), Random("tokenizer corpus")
    blank = Chat(template, Tokenizer(models.BPE()))
    drawn = [draw_training_question(random) for _ in range(2_000)]
    tokenizer = build_tokenizer(
        [blank.text(demonstration(question, question.kind), TOOLS) for question in drawn]
    )
    config = NativeConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1_024,
    )
    policy = NativePolicy(config)
    loss = supervise(policy, Chat(template, tokenizer), WarmStart(seed=options.seed, steps=options.steps))
    options.folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(tokenizer, options.folder)
    save_policy(policy, options.folder)
    (options.folder / "chat_template.jinja").write_text(template)
    print(f"{options.folder}: loss {loss:.4f}, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
