"""LangChain's deep agents on langgraph, in a program with a sub-agent: chat completions or responses, not
streamed.
"""

from typing import Literal

from harnessgym.harnesses.agent_file import AgentFile, AgentFileConfig
from harnessgym.harnesses.program import PythonProgram


class DeepAgentsConfig(AgentFileConfig):
    """How the program is run."""

    version: str = "0.7.32"
    """Version of the PyPI package `deepagents`."""
    program: str = "examples/deepagents_research.py"
    api: Literal["responses", "chat"] = "chat"


class DeepAgents(AgentFile):
    """Describes a run of the program."""

    settings = DeepAgentsConfig

    def __init__(self, config: DeepAgentsConfig) -> None:
        requirements = (f"deepagents=={config.version}", "langchain-openai==1.7.3")
        program = PythonProgram(config, "deepagents", config.version, requirements)
        super().__init__(config, program, env={"LANGSMITH_TRACING": "false"})
