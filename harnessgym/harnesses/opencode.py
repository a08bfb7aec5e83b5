"""OpenCode: chat completions, streamed. It requests titles from a separate model name."""

import json
from collections.abc import Sequence

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

# Titles are requested from a model of this name, by which the proxy recognises them as side calls.
_SMALL = "small"
_PROVIDER = "harnessgym"


class OpenCodeConfig(ProgramConfig):
    """How to run OpenCode."""

    version: str = "1.18.33"
    """Version of the npm package `opencode-ai`."""
    context_window: int = 128_000
    """Size of the model's context, as told to the agent; it compacts before the context is full."""
    max_tokens: int = 8_192
    """Most tokens it requests in one answer."""


class OpenCode:
    """Describes a run of `opencode`."""

    settings = OpenCodeConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(kind="side", name="title", model=_SMALL),
        SideCallRule(
            kind="compaction", name="summary", system_prefix="You are a context summarization agent"
        ),
    )

    def __init__(self, config: OpenCodeConfig) -> None:
        self._config = config
        self._program = NodeProgram(
            config, "opencode", config.version, "opencode-ai", setup="postinstall.mjs"
        )

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        model = self._config.model or endpoint.model
        limit = {"context": self._config.context_window, "output": self._config.max_tokens}
        options = {"baseURL": endpoint.openai_url, "apiKey": endpoint.key}
        models = {name: {"name": name, "limit": limit, "tool_call": True} for name in (model, _SMALL)}
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow"},
            "model": f"{_PROVIDER}/{model}",
            "small_model": f"{_PROVIDER}/{_SMALL}",
            "enabled_providers": [_PROVIDER],
            "provider": {
                _PROVIDER: {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
            },
        }
        env = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")}
        argv = ("opencode", "run", "--format", "json", "--model", f"{_PROVIDER}/{model}", task.instruction)
        files = {".config/opencode/opencode.json": json.dumps(settings)}
        return self._program.launch(task, argv, env=env, files=files)
