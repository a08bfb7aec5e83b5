"""Gemini CLI: generateContent, streamed."""

import json
from collections.abc import Sequence

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

_BELIEVED = 1_048_576
"""Context size in tokens that the agent assumes for its models. Only the share at which it compacts can be
set."""
_FULL = 0.8
_SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
}


class GeminiCliConfig(ProgramConfig):
    """How to run Gemini CLI."""

    version: str = "0.61.0"
    """Version of the npm package `@google/gemini-cli`."""
    model: str = "gemini-2.5-pro"
    """Model name the agent requests. Its prompt depends on the name. Without a name it calls a classifier
    first."""
    context_window: int = 128_000
    """The model's context in tokens. Before it is full, the agent compacts everything before its newest
    prompt; it cannot compact a single prompt."""


class GeminiCli:
    """Describes a run of `gemini`."""

    settings = GeminiCliConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(
            kind="compaction", name="summary", system_prefix="You are a specialized system component"
        ),
        SideCallRule(kind="side", name="classifier", no_tools=True, json_schema=True),
    )

    def __init__(self, config: GeminiCliConfig) -> None:
        self._config = config
        self._program = NodeProgram(config, "gemini_cli", config.version, "@google/gemini-cli")

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        settings = {
            **_SETTINGS,
            "model": {"compressionThreshold": _FULL * self._config.context_window / _BELIEVED},
        }
        env = {
            "GEMINI_API_KEY": endpoint.key,
            "GOOGLE_GEMINI_BASE_URL": endpoint.gemini_url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            # Else it starts itself a second time, only for a larger heap.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }
        argv = (
            "gemini",
            "--yolo",
            "--model",
            self._config.model or endpoint.model,
            "--prompt",
            task.instruction,
        )
        return self._program.launch(
            task, argv, env=env, files={".gemini/settings.json": json.dumps(settings)}
        )
