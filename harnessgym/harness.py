"""Harnesses: black-box agent programs, described as values.

A harness does no I/O. It says how to install the agent and, for a task and an endpoint, how to launch it; any
sandbox can run that. `start` is the one way from a `Launch` to a running program.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.sandbox import ExecResult, InstallStep, Prewarm, Sandbox
from harnessgym.task import Limits, Task


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a harness finds its model provider: the proxy, as seen from inside the sandbox, and the
    session's key.
    """

    url: str
    """Without a trailing slash and without a protocol's path."""
    key: str = field(repr=False)
    model: str = "policy"
    """The model name a harness should ask for."""
    seed: int = 0
    """The rollout's: for whatever a harness draws by itself. A rollout that is run again has the same."""

    @property
    def openai_url(self) -> str:
        """Base URL for chat completions and responses."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """Base URL for messages: clients add `/v1` themselves."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """Base URL for generateContent: clients add the API version themselves."""
        return self.url


@dataclass(frozen=True, slots=True)
class Launch:
    """One harness run, ready for a sandbox. The key is in `env` or `files`, never in `argv`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Relative path to text, laid into the workspace beside the task's files."""
    stdin: bytes | None = None
    cwd: str = "."
    limits: Limits = field(default_factory=Limits)
    prewarm: Prewarm | None = None
    """The interpreter a Python harness forks from; None starts it cold."""
    readable: tuple[str, ...] = ()
    """Files and folders of this machine the harness needs to read: its program, its configuration."""


class SideCallRule(Config):
    """How to tell a call that is not the policy acting (a title, a classifier, a judge) from one that is.

    A call is of the first rule's kind whose every condition it meets.
    """

    kind: Literal["side", "compaction"]
    """side: recorded, never trained. compaction: the policy summarises its own history; trained like any
    other call."""
    name: str
    """What such calls are for, e.g. `title`; stored with the call."""
    no_tools: bool = False
    """Only calls that offer no tools."""
    json_schema: bool = False
    """Only calls that ask for JSON of a schema."""
    model: str = ""
    """Only calls for this model name."""
    max_tokens: int = Field(0, ge=0)
    """Only calls that ask for at most so many tokens; 0 is no condition."""
    system_prefix: str = ""
    """Only calls whose system text starts like this."""
    system_pattern: str = ""
    """Only calls in whose system text this regular expression is found."""
    user_pattern: str = ""
    """Only calls in whose last user message this regular expression is found."""

    @model_validator(mode="after")
    def _conditional(self) -> Self:
        if not set(self.model_fields_set) - {"kind", "name"}:
            raise ValueError(
                f"side-call rule {self.name!r} has no condition and would take every call. Give it one."
            )
        for pattern in (self.system_pattern, self.user_pattern):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"side-call rule {self.name!r}: {pattern!r} is no regular expression: {error}."
                ) from error
        return self


class Harness(Protocol):
    """Describes an agent program; does no I/O."""

    image: str
    """Container image that it runs in where the task names none; what `install` needs is there."""
    side_calls: Sequence[SideCallRule]

    def install(self) -> Sequence[InstallStep]:
        """What puts the agent into an image or a prefix; empty if it is there already."""
        ...

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """How to run the agent on one task. Raises HarnessError when it cannot be described."""
        ...


async def start(launch: Launch, task: Task, sandbox: Sandbox) -> ExecResult:
    """Lays out the task's and the launch's files, runs the harness to its end, and says how it ended.

    Raises SandboxError when the sandbox failed; whatever the harness itself does is in the result.
    """
    for path, text in {**task.files, **launch.files}.items():
        await sandbox.write(path, text.encode())
    return await sandbox.exec(
        launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        stdin=launch.stdin,
        timeout_s=launch.limits.wall_s,
        max_output=launch.limits.output_bytes,
        prewarm=launch.prewarm,
        readable=launch.readable,
    )
