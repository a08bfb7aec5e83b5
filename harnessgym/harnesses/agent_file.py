"""Agents that are a Python file: a program of the user's own on an installed SDK, which speaks to OpenAI's
API.

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
    """How the file is run."""

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
        """`program` is the SDK's environment; `env` and `args` are added to what every such file is given."""
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
