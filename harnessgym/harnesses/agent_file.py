"""Agents in a Python file: the user's own program on an installed SDK that speaks OpenAI's API.

The file reads the task from standard input, the endpoint and the model's name from `OPENAI_BASE_URL`,
`OPENAI_API_KEY` and `OPENAI_MODEL`, and the protocol from the argument `--api`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import PYTHON_IMAGE, ProgramConfig, PythonProgram
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task


class AgentFileConfig(ProgramConfig):
    """How to run the file."""

    program: str
    """Python file with the agents; it reads the task from standard input."""
    api: Literal["responses", "chat"]
    """Protocol it speaks to the proxy."""


class AgentFile:
    """Describes a run of the file."""

    image = PYTHON_IMAGE
    side_calls: Sequence[SideCallRule] = ()

    def __init__(
        self,
        config: AgentFileConfig,
        program: PythonProgram,
        *,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> None:
        """`program` is the SDK's environment; `env` and `args` are added to those of every agent file."""
        self._config = config
        self._program = program
        self._env = dict(env or {})
        self._args = tuple(args)

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        config = self._config
        file = str(Path(self._config.program).resolve())
        env = {
            "OPENAI_BASE_URL": endpoint.openai_url,
            "OPENAI_API_KEY": endpoint.key,
            "OPENAI_MODEL": config.model or endpoint.model,
        }
        argv = ("python", file, "--api", config.api, *self._args)
        return self._program.launch(
            task, argv, env={**env, **self._env}, stdin=task.instruction, readable=(file,)
        )


class DeepAgentsConfig(AgentFileConfig):
    """How to run a Deep Agents program."""

    version: str = "0.7.32"
    """Version of the PyPI package `deepagents`."""
    program: str = "examples/deepagents_research.py"
    api: Literal["responses", "chat"] = "chat"


class DeepAgents(AgentFile):
    """Describes a run of a Deep Agents program."""

    settings = DeepAgentsConfig

    def __init__(self, config: DeepAgentsConfig) -> None:
        requirements = (f"deepagents=={config.version}", "langchain-openai==1.7.3")
        program = PythonProgram(config, "deepagents", config.version, requirements)
        super().__init__(config, program, env={"LANGSMITH_TRACING": "false"})


class OpenAIAgentsConfig(AgentFileConfig):
    """How to run an OpenAI Agents program."""

    version: str = "0.24.0"
    """Version of the PyPI package `openai-agents`."""
    program: str = "examples/openai_agents_handoff.py"
    api: Literal["responses", "chat"] = "responses"
    stream: bool = False
    """Whether it requests streamed answers."""


class OpenAIAgents(AgentFile):
    """Describes a run of an OpenAI Agents program."""

    settings = OpenAIAgentsConfig

    def __init__(self, config: OpenAIAgentsConfig) -> None:
        program = PythonProgram(
            config, "openai_agents", config.version, (f"openai-agents=={config.version}",)
        )
        super().__init__(config, program, args=("--stream",) if config.stream else ())
