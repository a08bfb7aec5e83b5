"""The OpenAI Agents SDK, in a program of two agents: responses or chat completions, streamed or not."""

from typing import Literal

from harnessgym.harnesses.agent_file import AgentFile, AgentFileConfig
from harnessgym.harnesses.program import PythonProgram


class OpenAIAgentsConfig(AgentFileConfig):
    """How the program is run."""

    version: str = "0.24.0"
    """Version of the PyPI package `openai-agents`."""
    program: str = "examples/openai_agents_handoff.py"
    api: Literal["responses", "chat"] = "responses"
    stream: bool = False
    """Whether it asks for streamed answers."""


class OpenAIAgents(AgentFile):
    """Describes a run of the program."""

    settings = OpenAIAgentsConfig

    def __init__(self, config: OpenAIAgentsConfig) -> None:
        program = PythonProgram(
            config, "openai_agents", config.version, (f"openai-agents=={config.version}",)
        )
        super().__init__(config, program, args=("--stream",) if config.stream else ())
