"""The OpenAI Agents SDK, in a program of two agents: responses or chat completions, streamed or not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harnessgym.harness import Endpoint, Launch, SideCallRule, Step
from harnessgym.harnesses.program import ProgramConfig, PythonProgram
from harnessgym.task import Task


class OpenAIAgentsConfig(ProgramConfig):
    """How the program is run."""

    version: str = "0.24.0"
    """Version of the PyPI package `openai-agents`."""
    program: str = "examples/openai_agents_handoff.py"
    """Python file with the agents; it reads the task from standard input."""
    api: Literal["responses", "chat"] = "responses"
    """Protocol it speaks to the proxy."""
    stream: bool = False
    """Whether it asks for streamed answers."""


class OpenAIAgents:
    """Describes a run of the program."""

    settings = OpenAIAgentsConfig
    side_calls: Sequence[SideCallRule] = ()

    def __init__(self, config: OpenAIAgentsConfig) -> None:
        self._config = config
        requirements = (f"openai-agents=={config.version}",)
        self._program = PythonProgram(config, "openai_agents", config.version, requirements)

    def install(self) -> Sequence[Step]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        config, program = self._config, str(Path(self._config.program).resolve())
        env = {
            "OPENAI_BASE_URL": endpoint.openai_url,
            "OPENAI_API_KEY": endpoint.key,
            "OPENAI_MODEL": config.model or endpoint.model,
        }
        argv = ("python", program, "--api", config.api, *(["--stream"] if config.stream else []))
        return self._program.launch(task, argv, env=env, stdin=task.instruction, readable=(program,))
