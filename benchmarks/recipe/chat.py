"""Messages to token ids through a model folder's own chat template and tokenizer, with plain jinja2."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

Message = dict[str, Any]
"""A chat message as chat templates take it."""


class Chat:
    """A chat template with its tokenizer."""

    def __init__(self, template: str, tokenizer: Tokenizer) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self.template, self.tokenizer = environment.from_string(template), tokenizer
        self.end = int(tokenizer.token_to_id("<|im_end|>") or 0)

    @classmethod
    def from_folder(cls, folder: Path) -> "Chat":
        """The chat of a Hugging Face model folder."""
        return cls(
            (folder / "chat_template.jinja").read_text(), Tokenizer.from_file(str(folder / "tokenizer.json"))
        )

    def text(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), *, generate: bool = False
    ) -> str:
        """The prompt text; `generate` opens an assistant turn."""
        return self.template.render(messages=messages, tools=tools, add_generation_prompt=generate)

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
