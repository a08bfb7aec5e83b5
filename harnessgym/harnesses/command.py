"""The `command` harness: any program that reads its provider's address and key from the environment."""

import os
import string
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from harnessgym.config import Config
from harnessgym.errors import HarnessError
from harnessgym.harness import Endpoint, Launch, SideCallRule
from harnessgym.harnesses.program import PYTHON_IMAGE
from harnessgym.sandbox import InstallStep, Prewarm
from harnessgym.task import Task


def _providers() -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": "{url}/v1",
        "OPENAI_API_BASE": "{url}/v1",
        "OPENAI_API_KEY": "{key}",
        "OPENAI_MODEL": "{model}",
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "{key}",
        "ANTHROPIC_MODEL": "{model}",
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_API_KEY": "{key}",
        "GOOGLE_API_KEY": "{key}",
        "GOOGLE_GENERATIVE_AI_API_KEY": "{key}",
    }


class CommandConfig(Config):
    """How to run a program.

    Templates may use `{instruction}`, `{url}`, `{key}`, `{model}`, `{task}` (the task's id) and `{seed}` (the
    rollout's seed, which stays the same if the rollout is repeated).
    """

    argv: tuple[str, ...] = Field(min_length=1)
    """The command. `{key}` is refused here, because any process can read the arguments of another."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables in addition to `providers`."""
    providers: dict[str, str] = Field(default_factory=_providers)
    """Environment variables that point SDKs at the proxy."""
    files: dict[str, str] = Field(default_factory=lambda: {"instruction.txt": "{instruction}"})
    """Files written to the workspace, by relative path."""
    stdin: str | None = None
    """Standard input; empty if unset."""
    prewarm: bool = False
    """Fork a `python ...` command from a warmed interpreter instead of starting one."""
    warm: str = ""
    """What that interpreter loads and uses beforehand: `"openai"`, `"anthropic"` or `"module:function"`."""
    python: str = ""
    """Interpreter for a `python ...` command; empty is HarnessGym's own. A command may also begin with an
    interpreter's path."""
    readable: tuple[str, ...] = ()
    """Other files and folders on this machine that the program needs."""
    inside: bool = False
    """Whether the command is in the sandbox's image instead of on this machine. A Python file on this machine
    keeps its path, and the image's interpreter runs it, whatever `python` says."""


class CommandHarness:
    """Describes a run of one configured program."""

    settings = CommandConfig
    image = PYTHON_IMAGE
    side_calls: Sequence[SideCallRule] = ()

    def __init__(self, config: CommandConfig) -> None:
        for word in config.argv:
            if "key" in _fields(word):
                raise HarnessError(
                    f"argv word {word!r} would show the session's key to every process. Put it into env."
                )
        self._config = config
        named = config.argv[0]
        self._python = config.python or (os.path.abspath(named) if "/" in named else "")
        self._argv, self._program = self._resolve()

    def install(self) -> Sequence[InstallStep]:
        """Returns no steps: the program is installed already."""
        return ()

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """See `Harness.launch`."""
        values = {
            "instruction": task.instruction,
            "url": endpoint.url,
            "key": endpoint.key,
            "model": endpoint.model,
            "task": task.id,
            "seed": str(endpoint.seed),
        }
        config = self._config
        return Launch(
            argv=tuple(_fill(word, values) for word in self._argv),
            env={name: _fill(text, values) for name, text in {**config.providers, **config.env}.items()},
            files={path: _fill(text, values) for path, text in config.files.items()},
            stdin=_fill(config.stdin, values).encode() if config.stdin is not None else None,
            limits=task.limits,
            prewarm=Prewarm(config.warm, "" if config.inside else self._python) if config.prewarm else None,
            readable=(*self._program, *config.readable),
        )

    def _resolve(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Makes a Python program's path absolute. Returns the argv and the paths the sandbox must show."""
        argv = self._config.argv
        if Path(argv[0]).name not in ("python", "python3"):
            if self._config.prewarm:
                raise HarnessError(f"Only a `python ...` command can be prewarmed, not {argv[0]!r}.")
            return argv, ()
        prefix: tuple[str, ...] = ()
        if self._config.inside:
            argv = (Path(argv[0]).name, *argv[1:])
        elif self._python:
            argv = (self._python, *argv[1:])
            # A virtual environment's interpreter is a link to another's.
            where = (Path(self._python), Path(self._python).resolve())
            prefix = tuple(dict.fromkeys(str(path.parent.parent) for path in where))
        if len(argv) < 2 or argv[1].startswith("-"):
            return argv, prefix
        program = Path(argv[1]).resolve()
        if not program.is_file():
            raise HarnessError(f"There is no harness program {argv[1]!r} (looked for {program}).")
        return (argv[0], str(program), *argv[2:]), (*prefix, str(program))


def _fields(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise HarnessError(
            f"Template {template!r} is malformed: {error}. Write a literal brace twice."
        ) from error


def _fill(template: str, values: dict[str, str]) -> str:
    unknown = _fields(template) - set(values)
    if unknown:
        raise HarnessError(
            f"Template {template!r} uses {', '.join(sorted(map(repr, unknown)))}; known are "
            f"{', '.join(sorted(values))}. Write a literal brace twice."
        )
    return template.format(**values)
