"""LangChain's deep agents on langgraph, in a program with a sub-agent: chat completions or responses, not streamed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harnessgym.harness import Endpoint, Launch, SideCallRule, Step
from harnessgym.harnesses.program import ProgramConfig, PythonProgram
from harnessgym.task import Task


class DeepAgentsConfig(ProgramConfig):
    """How the program is run."""

    version: str = "0.7.32"
    """Version of the PyPI package `deepagents`."""
    program: str = "examples/deepagents_research.py"
    """Python file with the agents; it reads the task from standard input."""
    api: Literal["responses", "chat"] = "chat"
    """Protocol it speaks to the proxy."""


class DeepAgents:
    """Describes a run of the program."""

    settings = DeepAgentsConfig
    side_calls: Sequence[SideCallRule] = ()

    def __init__(self, config: DeepAgentsConfig) -> None:
        self._config = config
        requirements = (f"deepagents=={config.version}", "langchain-openai==1.7.3")
        self._program = PythonProgram(config, "deepagents", config.version, requirements)

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
            "LANGSMITH_TRACING": "false",
        }
        argv = ("python", program, "--api", config.api)
        return self._program.launch(task, argv, env=env, stdin=task.instruction, readable=(program,))
