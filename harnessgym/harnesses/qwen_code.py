"""Qwen Code: chat completions, streamed."""

import json
from collections.abc import Sequence

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

_SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "openai"}},
}


class QwenCodeConfig(ProgramConfig):
    """How to run Qwen Code."""

    version: str = "0.24.4"
    """Version of the npm package `@qwen-code/qwen-code`."""


class QwenCode:
    """Describes a run of `qwen`."""

    settings = QwenCodeConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(
            kind="compaction",
            name="summary",
            system_prefix="You are the component that summarizes a conversation",
        ),
        SideCallRule(kind="side", name="memory", system_prefix="You are now acting as the managed memory"),
    )

    def __init__(self, config: QwenCodeConfig) -> None:
        self._config = config
        self._program = NodeProgram(config, "qwen_code", config.version, "@qwen-code/qwen-code")

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        env = {
            "OPENAI_BASE_URL": endpoint.openai_url,
            "OPENAI_API_KEY": endpoint.key,
            "OPENAI_MODEL": self._config.model or endpoint.model,
            # Else it starts itself once more, only for a larger heap.
            "QWEN_CODE_NO_RELAUNCH": "true",
        }
        argv = ("qwen", "--yolo", "--auth-type", "openai", "--prompt", task.instruction)
        return self._program.launch(task, argv, env=env, files={".qwen/settings.json": json.dumps(_SETTINGS)})
