"""Harnesses: black-box agent programs, described as values.

A harness does no I/O. It says how to install the agent and how to launch it for a task and an endpoint. Any
sandbox can run the result. `start` is the only way from a `Launch` to a running program.
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
    """The model provider of a harness: the proxy's address from inside the sandbox, and the session's key."""

    url: str
    """Base URL without a trailing slash or a protocol's path."""
    key: str = field(repr=False)
    model: str = "policy"
    """The model name that the harness should request."""
    seed: int = 0
    """The rollout's seed, for the harness's own random choices. A retried rollout has the same one."""

    @property
    def openai_url(self) -> str:
        """Base URL for chat completions and responses."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """Base URL for messages. Clients add `/v1` themselves."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """Base URL for generateContent. Clients add the API version themselves."""
        return self.url


@dataclass(frozen=True, slots=True)
class Launch:
    """One harness run, ready for a sandbox. The key is in `env` or `files`, never in `argv`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Relative path to text. Written to the workspace beside the task's files."""
    stdin: bytes | None = None
    cwd: str = "."
    limits: Limits = field(default_factory=Limits)
    prewarm: Prewarm | None = None
    """The interpreter a Python harness forks from; None starts it cold."""
    readable: tuple[str, ...] = ()
    """Files and folders of this machine that the harness reads: its program, its configuration."""


class SideCallRule(Config):
    """Recognises calls in which the policy does not act (a title, a classifier, a judge).

    The first rule whose conditions all hold decides the kind of a call.
    """

    kind: Literal["side", "compaction"]
    """side: recorded, never trained. compaction: the policy summarises its own history; trained like any
    other call."""
    name: str
    """The purpose of such calls, e.g. `title`. Stored with the call."""
    no_tools: bool = False
    """Only calls that offer no tools."""
    json_schema: bool = False
    """Only calls that request JSON of a schema."""
    model: str = ""
    """Only calls for this model name."""
    max_tokens: int = Field(0, ge=0)
    """Only calls that request at most this many tokens; 0 means no condition."""
    system_prefix: str = ""
    """Only calls whose system text begins with this."""
    system_pattern: str = ""
    """Only calls whose system text contains a match of this regular expression."""
    user_pattern: str = ""
    """Only calls whose last user message contains a match of this regular expression."""

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
    """Describes an agent program. Does no I/O."""

    image: str
    """Container image to run in if the task names none. It has what `install` needs."""
    side_calls: Sequence[SideCallRule]

    def install(self) -> Sequence[InstallStep]:
        """Steps that install the agent into an image or a prefix; empty if it is already there."""
        ...

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """How to run the agent on one task. Raises `HarnessError` if that cannot be described."""
        ...


async def start(launch: Launch, task: Task, sandbox: Sandbox) -> ExecResult:
    """Write the task's and the launch's files, run the harness to its end and return how it ended.

    Raises `SandboxError` if the sandbox failed. The harness's own failures are in the result.
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
