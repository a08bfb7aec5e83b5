"""`task.toml` of a Harbor task (schema 1.4): every key with its type.

Unknown keys are kept and reported. Deprecated keys (`version`, `memory = "2G"`, `storage`, `allow_internet`)
are translated to the current ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from harnessgym.errors import TaskError
from harnessgym.sandboxes.hosts import literal, parse, split

NetworkMode = Literal["public", "no-network", "allowlist"]
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([GMK])", re.IGNORECASE)
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class Table(BaseModel):
    """Base class. Unknown keys are allowed; `unknown` lists them."""

    model_config = ConfigDict(extra="allow", frozen=True)


def mebibytes(size: str) -> int:
    """`"2G"`, `"512M"` or `"1048576K"` in MiB, rounded up. Raises ValueError."""
    match = _SIZE.fullmatch(size.strip())
    if match is None or not float(match[1]):
        raise ValueError(
            f"{size!r} is no size; write a number and G, M or K, or use the key that ends in _mb"
        )
    return -int(-float(match[1]) * _MIB[match[2].upper()] // 1)


def checked_host(text: str) -> str:
    """An entry of `allowed_hosts`: a host, `*.host`, an address or a CIDR block. Raises ValueError."""
    try:
        parse(text)
    except TaskError as error:
        raise ValueError(str(error)) from None
    if literal(text) is None and "/" not in text and (text.startswith("[") or split(text)[1] is not None):
        raise ValueError(
            f"{text!r} has a port or brackets; write a host, `*.host`, an address or a CIDR block alone"
        )
    return text


def _relative(path: str) -> str:
    if PurePosixPath(path).is_absolute():
        raise ValueError(f"{path!r} must be a relative path")
    return path


def _inside(path: str) -> str:
    if not path or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} must be a path without `..`")
    return path


Hosts = tuple[Annotated[str, AfterValidator(checked_host)], ...]
PathText = Annotated[str, AfterValidator(_inside)]


class Artifact(Table):
    """A path that is kept, and that a separate verifier grades."""

    source: PathText
    destination: Annotated[PathText, AfterValidator(_relative)] | None = None
    exclude: tuple[str, ...] = ()
    service: str = "main"

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.service != "main" and not PurePosixPath(self.source).is_absolute():
            raise ValueError(
                f"the source of an artifact of the service {self.service!r} must be an absolute path"
            )
        if PurePosixPath(self.destination or self.source).name == "manifest.json":
            raise ValueError("an artifact cannot be called `manifest.json`")
        return self


def _artifact(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_artifact)], ...]


class Network(Table):
    """The network that a phase may use."""

    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts | None = None


class AgentTable(Network):
    """`[agent]`."""

    timeout_sec: float | None = Field(None, gt=0)
    user: str | int | None = None


class Healthcheck(Table):
    """`[environment.healthcheck]`: a command that must succeed before the agent starts."""

    command: str = Field(min_length=1)
    interval_sec: float = Field(5.0, ge=0)
    timeout_sec: float = Field(30.0, gt=0)
    start_period_sec: float = Field(0.0, ge=0)
    start_interval_sec: float = Field(5.0, ge=0)
    retries: int = Field(3, ge=1)


class McpServer(Table):
    """`[[environment.mcp_servers]]`."""

    name: str
    transport: Literal["sse", "streamable-http", "http", "stdio"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = Field(default_factory=dict)


class Tpu(Table):
    """`[environment.tpu]`."""

    type: str
    topology: str | None = None


class Environment(Network):
    """`[environment]`, and `[verifier.environment]`."""

    build_timeout_sec: float = Field(600.0, gt=0)
    docker_image: str | None = Field(None, min_length=1)
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int | None = Field(None, ge=0)
    gpu_types: tuple[str, ...] | None = None
    tpu: Tpu | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    workdir: str | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    healthcheck: Healthcheck | None = None

    @model_validator(mode="before")
    @classmethod
    def _deprecated(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        table = dict(raw)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = table.pop(old, None)
            if size is not None and table.get(new) is None:
                table[new] = mebibytes(size) if isinstance(size, str) else size
        internet = table.pop("allow_internet", None)
        if internet is not None and not isinstance(internet, bool):
            raise ValueError(f"allow_internet is {internet!r}; write network_mode instead")
        if internet is not None and table.get("network_mode") is None:
            table["network_mode"] = "public" if internet else "no-network"
        return table

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and not PurePosixPath(path).is_absolute():
            raise ValueError(f"{path!r} must be an absolute path in the image")
        return path


class Collect(Table):
    """`[[verifier.collect]]`: a command that runs after the agent in its environment, before grading."""

    command: str = Field(min_length=1)
    service: str = "main"
    timeout_sec: float = Field(60.0, gt=0)
    user: str | int | None = None


class VerifierTable(Network):
    """`[verifier]`."""

    timeout_sec: float = Field(600.0, gt=0)
    env: Mapping[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()


class StepTable(Table):
    """`[[steps]]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: float | Mapping[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = ()

    @field_validator("min_reward")
    @classmethod
    def _finite(cls, value: float | Mapping[str, float] | None) -> float | Mapping[str, float] | None:
        numbers = value.values() if isinstance(value, Mapping) else [0.0 if value is None else value]
        if any(not abs(number) < float("inf") for number in numbers):
            raise ValueError("it must be a finite number, or a table of them")
        return value


class Author(Table):
    """An author in `[task]`."""

    name: str
    email: str | None = None


class PackageTable(Table):
    """`[task]`."""

    name: str = ""
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()


class SolutionTable(Table):
    """`[solution]`."""

    env: Mapping[str, str] = Field(default_factory=dict)


class HarborTable(Table):
    """`task.toml`."""

    schema_version: str = "1.4"
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: Artifacts = ()
    task: PackageTable | None = None
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: Environment = Environment()
    solution: SolutionTable = SolutionTable()
    steps: tuple[StepTable, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _alias(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "version" in raw:
            rest = {key: value for key, value in raw.items() if key != "version"}
            return {"schema_version": raw["version"], **rest}
        return raw

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [step.name for step in self.steps]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two steps are called {twice!r}")
        return self


def unknown(table: BaseModel, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every unknown entry."""
    for key, value in (table.model_extra or {}).items():
        yield at + key, value
    for key in type(table).model_fields:
        value = getattr(table, key)
        if isinstance(value, BaseModel):
            yield from unknown(value, f"{at}{key}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for number, each in enumerate(value):
                if isinstance(each, BaseModel):
                    yield from unknown(each, f"{at}{key}[{number}].")
