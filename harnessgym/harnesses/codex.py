"""Codex: responses, streamed."""

import json
from collections.abc import Sequence

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

_KEY = "HARNESSGYM_KEY"
_CONFIG = """\
model = {model}
model_provider = "harnessgym"
model_context_window = {window}
check_for_update_on_startup = false
web_search = "disabled"
[analytics]
enabled = false
[model_providers.harnessgym]
name = "harnessgym"
base_url = {url}
env_key = "{key}"
wire_api = "responses"
request_max_retries = {retries}
stream_max_retries = {retries}
"""


class CodexConfig(ProgramConfig):
    """How to run Codex."""

    version: str = "0.169.0"
    """Version of the npm package `@openai/codex`."""
    context_window: int = 128_000
    """Size of the model's context, as told to the agent; it compacts before the context is full."""
    retries: int = 4
    """How often it repeats a failed request."""


class Codex:
    """Describes a run of `codex exec`."""

    settings = CodexConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(kind="compaction", name="summary", user_pattern="CONTEXT CHECKPOINT COMPACTION"),
    )

    def __init__(self, config: CodexConfig) -> None:
        self._config = config
        self._program = NodeProgram(config, "codex", config.version, "@openai/codex")

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`. The sandbox protects the machine, so the agent's own sandbox is off."""
        config = self._config
        text = _CONFIG.format(
            model=json.dumps(config.model or endpoint.model),
            url=json.dumps(endpoint.openai_url),
            key=_KEY,
            window=config.context_window,
            retries=config.retries,
        )
        argv = (
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "--json",
            "-",
        )
        files = {".codex/config.toml": text}
        return self._program.launch(task, argv, env={_KEY: endpoint.key}, files=files, stdin=task.instruction)
