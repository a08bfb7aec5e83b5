"""Claude Code: messages, streamed."""

from collections.abc import Sequence

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import NODE_IMAGE, NodeProgram, ProgramConfig
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task


class ClaudeCodeConfig(ProgramConfig):
    """How to run Claude Code."""

    version: str = "2.1.329"
    """Version of the npm package `@anthropic-ai/claude-code`."""
    max_tokens: int = 8_192
    """Most tokens it requests in one answer."""


class ClaudeCode:
    """Describes a run of `claude`."""

    settings = ClaudeCodeConfig
    image = NODE_IMAGE
    side_calls: Sequence[SideCallRule] = (
        SideCallRule(kind="side", name="title", no_tools=True, json_schema=True),
        SideCallRule(kind="side", name="quota probe", no_tools=True, max_tokens=1),
        SideCallRule(
            kind="compaction",
            name="summary",
            user_pattern=r"CRITICAL: Respond with TEXT ONLY\. Do NOT call any tools",
        ),
    )

    def __init__(self, config: ClaudeCodeConfig) -> None:
        self._config = config
        self._program = NodeProgram(
            config, "claude_code", config.version, "@anthropic-ai/claude-code", setup="install.cjs"
        )

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`. The sandbox protects the machine, so the agent asks for no permissions."""
        model = self._config.model or endpoint.model
        env = {
            "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
            "ANTHROPIC_API_KEY": endpoint.key,
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "CLAUDE_CODE_SUBAGENT_MODEL": model,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self._config.max_tokens),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        argv = (
            "claude",
            "--print",
            "--dangerously-skip-permissions",
            "--output-format",
            "json",
            "--model",
            model,
        )
        return self._program.launch(task, argv, env=env, stdin=task.instruction)
