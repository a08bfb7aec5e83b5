"""The programs of installed agents: where they lie, what installs them, how they are started.

Every agent has a folder of its own, named after it and its version, so that versions stand side by side and a
folder can be an image layer. Node agents share one pinned Node.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from harnessgym.config import Config
from harnessgym.harness import Launch
from harnessgym.sandbox import InstallStep, Prewarm
from harnessgym.task import Task

NODE = "22.23.3"
"""Node version that runs agents; the npm package `node` carries its binary."""
INSIDE = "/opt/harnessgym/agents"
"""Folder that agents are installed in inside images."""
PYTHON_IMAGE = "harnessgym/python"
NODE_IMAGE = "harnessgym/node"
"""Images that agents can be installed in where a task brings none: recipes of `docker/`."""
HOME = ".agent"
"""The agent's home folder, in the workspace: it finds no settings of the machine's user and leaves none."""
_START = f'export HOME="$PWD/{HOME}" PATH="$0:$PATH"; mkdir -p "$HOME"; exec "$@"'


class ProgramConfig(Config):
    """What every installed agent can be told."""

    folder: str = Field(default_factory=lambda: str(Path.home() / ".cache" / "harnessgym" / "agents"))
    """Folder that agents are installed in, each in one of its own."""
    model: str = ""
    """Model name the agent asks for; empty is the endpoint's."""
    args: tuple[str, ...] = ()
    """Arguments added to its command."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment added to its own."""
    inside: bool = False
    """Whether `folder` is one of the sandbox's image instead of this machine's."""


class Program:
    """One agent's program inside its folder. Describes; does no I/O."""

    def __init__(self, config: ProgramConfig, name: str, version: str) -> None:
        self.config = config
        self.folder = f"{config.folder}/{name}-{version}"
        self._path: tuple[str, ...] = (f"{self.folder}/bin",)
        self._readable: tuple[str, ...] = (self.folder,)

    def launch(
        self,
        task: Task,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
        readable: Sequence[str] = (),
    ) -> Launch:
        """A launch of `argv` with the agent's own home and its programs on the path."""
        words = ("sh", "-c", _START, ":".join(self._path), *argv, *self.config.args)
        return Launch(
            argv=words,
            env={**env, **self.config.env},
            files={f"{HOME}/{path}": text for path, text in (files or {}).items()},
            stdin=None if stdin is None else stdin.encode(),
            limits=task.limits,
            readable=(*(() if self.config.inside else self._readable), *readable),
        )


class NodeProgram(Program):
    """An agent from npm."""

    def __init__(
        self, config: ProgramConfig, name: str, version: str, package: str, *, setup: str = ""
    ) -> None:
        """`setup` is the package's own install script, for npm versions that do not run it."""
        super().__init__(config, name, version)
        self._package = f"{package}@{version}"
        self._setup = f"{self.folder}/node_modules/{package}/{setup}" if setup else ""
        self._node = f"{config.folder}/node-{NODE}"
        self._path = (f"{self.folder}/node_modules/.bin", f"{self._node}/node_modules/node/bin")
        self._readable = (self.folder, self._node)

    def install(self) -> Sequence[InstallStep]:
        """Node, the package, and its install script: in images with the package, lest what it changes is
        there twice.
        """
        node = _npm(self._node, f"node@{NODE}")
        package = _npm(self.folder, self._package)
        if not self._setup:
            return [node, package]
        setup = (f"{self._path[1]}/node", self._setup)
        if self.config.inside:
            return [node, InstallStep(("sh", "-ec", f"{shlex.join(package.argv)}\n{shlex.join(setup)}"))]
        return [node, package, InstallStep(setup)]


class PythonProgram(Program):
    """An agent from PyPI, in a virtual environment."""

    def __init__(self, config: ProgramConfig, name: str, version: str, requirements: Sequence[str]) -> None:
        super().__init__(config, name, version)
        self._requirements = requirements
        self.python = f"{self.folder}/bin/python"

    def install(self) -> Sequence[InstallStep]:
        """The environment and its packages."""
        pip = (
            self.python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *self._requirements,
        )
        interpreter = "python3" if self.config.inside else sys.executable
        return [InstallStep((interpreter, "-m", "venv", self.folder)), InstallStep(pip)]

    def forked(
        self,
        task: Task,
        program: str,
        argv: Sequence[str],
        warm: str,
        *,
        env: Mapping[str, str],
        files: Mapping[str, str],
    ) -> Launch:
        """As `launch`, forked from the environment's interpreter, warmed by `warm`; where nothing can be
        forked, started by it.

        Its home and its programs are the sandbox's.
        """
        launched = self.launch(task, argv, env=env, files=files)
        words = (self.python, f"{self.folder}/bin/{program}", *argv, *self.config.args)
        return replace(launched, argv=words, prewarm=Prewarm(warm, self.python))


def _npm(folder: str, package: str) -> InstallStep:
    return InstallStep(
        ("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", package)
    )
