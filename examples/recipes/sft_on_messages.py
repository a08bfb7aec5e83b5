"""Fine-tunes a model on the messages of `harnessgym traces export --format sft`, with TRL.

    python examples/recipes/sft_on_messages.py solved.jsonl --model models/Qwen3-1.7B --out models/taught

The teacher's words become tokens of the student's own chat template. A token has a loss if the teacher said it: what
tools and users said has none, nor has an answer that is learnt already in another branch of its rollout.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template

Json = dict[str, Any]
IGNORED = -100


def with_parsed_arguments(message: Json) -> Json:
    """The message with its calls' arguments as objects, which chat templates take."""
    calls = [
        call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or []
    ]
    return message | {"tool_calls": calls} if calls else message


def example_of(record: Json, tokenizer: PreTrainedTokenizerBase, template: str) -> Json:
    """{input_ids, labels} of a conversation."""
    messages = [with_parsed_arguments(message) for message in record["messages"]]
    encoded = tokenizer.apply_chat_template(
        messages,
        tools=record["tools"] or None,
        chat_template=template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    turns = iter(
        flag
        for flag, message in zip(record["loss_mask"], messages, strict=True)
        if message["role"] == "assistant"
    )
    labels, learnt, inside = [], False, False
    for token, of_assistant in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True):
        if of_assistant and not inside:  # an assistant's turn begins
            learnt = bool(next(turns))
        inside = bool(of_assistant)
        labels.append(token if inside and learnt else IGNORED)
    return {"input_ids": encoded["input_ids"], "labels": labels}


parser = argparse.ArgumentParser()
parser.add_argument("records", type=Path)
parser.add_argument("--model", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--max-length", type=int, default=16_384, help="longer conversations are left out")
arguments = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(arguments.model)
template = get_training_chat_template(tokenizer) or tokenizer.chat_template
records = [json.loads(line) for line in arguments.records.read_text().splitlines()]
examples = [example_of(record, tokenizer, template) for record in records]
kept = [example for example in examples if len(example["input_ids"]) <= arguments.max_length]
print(
    f"{len(kept)} of {len(examples)} conversations, {sum(label >= 0 for each in kept for label in each['labels'])} tokens learnt"
)

gpu = torch.cuda.is_available()
settings = SFTConfig(  # TRL's own defaults but for what saves memory: three epochs, a rate of 2e-5
    output_dir=arguments.out,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    bf16=gpu,
    use_cpu=not gpu,
    max_length=None,
    save_strategy="no",
    report_to="none",
)
trainer = SFTTrainer(arguments.model, args=settings, train_dataset=Dataset.from_list(kept))
trainer.train()
trainer.save_model(arguments.out)
tokenizer.save_pretrained(arguments.out)
