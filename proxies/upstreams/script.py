"""An engine that answers from a script file, for trying a harness or a recipe without a model.

The address of a worker of kind `scripted` is `scripted:/path/to/script.toml`; plain `scripted:` answers with
a fixed text. A script in TOML:

```toml
answers = [
    "Let me look.",
    { tool_call = { name = "bash", arguments = { command = "ls" } } },
    { text = "There it is." },
]
```

An answer may have a `reasoning` too, if the policy's chat template writes it; that of the shipped policy does
not.

All sessions share one sequence of answers, which starts again after the last. Answers are written in the
policy's language and end with its end of turn. Logprobs are made up: scripts are for testing, not training.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from harnessgym.config import Config, load_config
from harnessgym.errors import ConfigError, UpstreamError
from harnessgym.message import Message, Sampling, ToolCall
from harnessgym.tokens import TokenIds
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream

_GREETING = (
    "Hello! I am a scripted stand-in for a model: whatever you ask, this is my answer. Thank you for trying."
)


class ScriptedCall(Config):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ScriptedAnswer(Config):
    """One answer."""

    text: str = ""
    reasoning: str = ""
    tool_call: ScriptedCall | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    """Further tool calls, after `tool_call`."""

    @model_validator(mode="after")
    def _says_something(self) -> "ScriptedAnswer":
        if not (self.text or self.reasoning or self.tool_call or self.tool_calls):
            raise ValueError("an answer needs text or a tool_call")
        return self

    def message(self) -> Message:
        """The answer as a message."""
        scripted_calls = [*([] if self.tool_call is None else [self.tool_call]), *self.tool_calls]
        calls = tuple(
            ToolCall(f"call_{index}", call.name, json.dumps(call.arguments, ensure_ascii=False))
            for index, call in enumerate(scripted_calls)
        )
        return Message("assistant", self.text, reasoning=self.reasoning, tool_calls=calls)


class Script(Config):
    """A script file."""

    answers: tuple[str | ScriptedAnswer, ...] = Field(min_length=1)
    """Each is text as the policy would write it, markup and all, or an answer given by its parts."""


class ScriptUpstream(ScriptedUpstream):
    """Plays a script file."""

    def __init__(self, address: str, *, version: int = 0) -> None:
        """Raises `ConfigError` for a script that cannot be read."""
        self._where = address.removeprefix("scripted:")
        self._answers = load_config(Script, Path(self._where)).answers if self._where else (_GREETING,)
        self._written: list[tuple[int, ...]] = []
        self._given = 0
        super().__init__(self._next, version=version)

    def use_language(self, language: PolicyLanguage) -> None:
        """Tokenise the answers in the policy's language. Raises `ConfigError` if one cannot be written."""
        for index, answer in enumerate(self._answers):
            try:
                self._written.append(language.write(answer if isinstance(answer, str) else answer.message()))
            except UpstreamError as error:
                raise ConfigError(f"{self._where}: answer {index + 1} cannot be played. {error}") from error

    def _next(self, prompt: TokenIds, sampling: Sampling) -> TokenIds:  # noqa: ARG002
        if not self._written:
            raise UpstreamError(
                "A scripted worker needs the policy's language: it works behind a proxy only."
            )
        self._given += 1
        self.asked.clear()  # nobody reads them, and they would grow for as long as the proxy lives
        return self._written[(self._given - 1) % len(self._written)]
