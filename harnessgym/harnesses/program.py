"""The programs of installed agents: where they are, how to install them, how to start them.

Every agent has its own folder, named after the agent and its version. So several versions can be installed,
and a folder can be an image layer. Node agents share one pinned Node.
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
"""Version of Node that runs agents; the npm package `node` contains its binary."""
INSIDE = "/opt/harnessgym/agents"
"""Folder for agents inside images."""
PYTHON_IMAGE = "harnessgym/python"
NODE_IMAGE = "harnessgym/node"
"""Images (recipes in `docker/`) in which agents are installed if a task names none."""
HOME = ".agent"
"""The agent's home, in the workspace, so that it neither reads nor changes the settings of this user."""
# `$0` is the list of the program's folders, `$@` the agent's command. The home is made inside the sandbox,
# where the workspace's path is known.
_START = f'export HOME="$PWD/{HOME}" PATH="$0:$PATH"; mkdir -p "$HOME"; exec "$@"'


class ProgramConfig(Config):
    """Settings of every installed agent."""

    folder: str = Field(default_factory=lambda: str(Path.home() / ".cache" / "harnessgym" / "agents"))
    """Folder for agents; each is installed in its own folder inside."""
    model: str = ""
    """Model name the agent requests; empty is the endpoint's."""
    args: tuple[str, ...] = ()
    """Arguments added to its command."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables added to its own."""
    inside: bool = False
    """Whether `folder` is in the sandbox's image instead of on this machine."""


class Program:
    """One agent's program inside its folder. Only describes it; does no I/O."""

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
        """Describes a launch of `argv` with the agent's own home and its programs on the PATH."""
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
        """Steps that install Node, the package, and run the package's install script."""
        # In an image every step is a layer. In a layer of its own, the script would store every file that it
        # changes a second time.
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
        """Steps that make the virtual environment and install the packages."""
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
        """Like `launch`, but forked from the environment's interpreter, warmed by `warm`.

        It keeps the sandbox's home and PATH. A sandbox that cannot fork starts the interpreter instead.
        """
        launched = self.launch(task, argv, env=env, files=files)
        words = (self.python, f"{self.folder}/bin/{program}", *argv, *self.config.args)
        return replace(launched, argv=words, prewarm=Prewarm(warm, self.python))


def _npm(folder: str, package: str) -> InstallStep:
    return InstallStep(
        ("npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", package)
    )
