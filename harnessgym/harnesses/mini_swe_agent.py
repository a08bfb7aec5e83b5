"""mini-swe-agent: chat completions through litellm, not streamed."""

from collections.abc import Sequence
from typing import Self

from pydantic import model_validator

from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import HOME, PYTHON_IMAGE, ProgramConfig, PythonProgram
from harnessgym.sandbox import InstallStep
from harnessgym.task import Task

_CONFIG = "mini.yaml"


class MiniSweAgentConfig(ProgramConfig):
    """How to run mini-swe-agent."""

    version: str = "2.4.6"
    """Version of the PyPI package `mini-swe-agent`."""
    litellm: str = "1.106.2"
    """Version of litellm, which it uses."""
    config: str = ""
    """Text of a mini-swe-agent configuration file (YAML), which replaces its own `mini.yaml`."""
    prewarm: bool = False
    """Fork it from an interpreter that has loaded it and called a model once, instead of starting one. Saves
    3 s of CPU time per rollout. Its commands then see the sandbox's programs and home. `env` cannot change
    variables that it reads while it loads, because all rollouts share the loaded interpreter."""

    @model_validator(mode="after")
    def _not_loaded_yet(self) -> Self:
        fixed = sorted(name for name in self.env if name.startswith(("MSWEA_", "LITELLM_")))
        if self.prewarm and fixed:
            raise ValueError(
                f"prewarm forks an agent that is loaded already, which reads {', '.join(fixed)} of env "
                "only as it loads: set prewarm = false, or say it in config"
            )
        return self


class MiniSweAgent:
    """Describes a run of `mini`."""

    settings = MiniSweAgentConfig
    image = PYTHON_IMAGE
    side_calls: Sequence[SideCallRule] = ()

    def __init__(self, config: MiniSweAgentConfig) -> None:
        self._config = config
        requirements = (f"mini-swe-agent=={config.version}", f"litellm=={config.litellm}", "mcp")
        self._program = PythonProgram(config, "mini_swe_agent", config.version, requirements)

    def install(self) -> Sequence[InstallStep]:
        """See `Harness.install`."""
        return self._program.install()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        env = {
            "OPENAI_API_BASE": endpoint.openai_url,
            "OPENAI_API_KEY": endpoint.key,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        model = f"openai/{self._config.model or endpoint.model}"
        argv: tuple[str, ...] = ("--model", model, "--task", task.instruction, "--yolo", "--exit-immediately")
        argv = (*argv, "--output", f"{HOME}/trajectory.json")
        if self._config.config:
            argv = (*argv, "--config", f"{HOME}/{_CONFIG}")
        files = {_CONFIG: self._config.config} if self._config.config else {}
        if self._config.prewarm:
            return self._program.forked(task, "mini", argv, "mini_swe_agent", env=env, files=files)
        return self._program.launch(task, ("mini", *argv), env=env, files=files)
