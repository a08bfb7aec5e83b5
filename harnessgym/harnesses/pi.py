"""Pi: chat completions or messages, streamed."""

import json
from collections.abc import Sequence
from typing import Literal

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

_API = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}


class PiConfig(ProgramConfig):
    """How to run Pi."""

    version: str = "0.87.1"
    """Version of the npm package `@earendil-works/pi-coding-agent`."""
    protocol: Literal["chat", "responses", "messages"] = "chat"
    """Protocol it speaks to the proxy."""
    context_window: int = 128_000
    """Size of the model's context, as told to the agent; it compacts before the context is full."""
    max_tokens: int = 8_192
    """Most tokens it requests in one answer."""


class Pi:
    """Describes a run of `pi`."""

    settings = PiConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(
            kind="compaction", name="summary", system_prefix="You are a context summarization assistant"
        ),
    )

    def __init__(self, config: PiConfig) -> None:
        self._config = config
        self._program = NodeProgram(config, "pi", config.version, "@earendil-works/pi-coding-agent")

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        config = self._config
        model = self._config.model or endpoint.model
        card = {
            "id": model,
            "name": model,
            "reasoning": False,
            "input": ["text"],
            "contextWindow": config.context_window,
        }
        card |= {
            "maxTokens": config.max_tokens,
            "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
        }
        url = endpoint.anthropic_url if config.protocol == "messages" else endpoint.openai_url
        provider = {"baseUrl": url, "api": _API[config.protocol], "apiKey": endpoint.key, "models": [card]}
        compaction = {
            "reserveTokens": config.max_tokens,
            "keepRecentTokens": min(20_000, config.context_window // 4),
        }
        files = {
            ".pi/agent/models.json": json.dumps({"providers": {"harnessgym": provider}}),
            ".pi/agent/settings.json": json.dumps({"compaction": compaction}),
        }
        argv = (
            "pi",
            "--provider",
            "harnessgym",
            "--model",
            model,
            "--mode",
            "json",
            "--print",
            task.instruction,
        )
        return self._program.launch(
            task, argv, env={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}, files=files
        )
