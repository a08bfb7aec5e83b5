"""Reads the one service of a docker compose file: image, build folder, environment, working folder.

A task has one container. A file that needs a second one is a TaskError. Keys that a sandbox cannot honour are
ignored and listed in `without`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harnessgym.errors import TaskError
from harnessgym.sandbox import CONTEXT

_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?])([^}]*))?\})")
_HARMLESS = frozenset(
    {
        "build", "command", "container_name", "environment", "hostname", "image", "init", "logging",
        "platform", "pull_policy",
        "restart", "stdin_open", "stop_grace_period", "tty", "working_dir",
    }
)  # fmt: skip
"""Keys that are read here, or that have no effect in a sandbox."""
_WAITS = re.compile(r"sleep|tail|cat|sh|bash|infinity|-[a-z]+|/dev/null|\d+|&&|;|true")


@dataclass(frozen=True, slots=True)
class Service:
    """One service of a compose file."""

    image: str | None
    """A name, or `context:FOLDER`; None if the file names none."""
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """A phrase for each key that is ignored."""


def only_service(path: Path, name: str, known: Mapping[str, str]) -> Service:
    """The service `name` of a file that has only this one.

    `known` adds variables to this machine's environment. Raises TaskError with the file and the key for
    several services and for unsupported builds.
    """
    raw = _mapping(_read(path), path, "the file")
    services = _mapping(raw.get("services"), path, "services")
    others = sorted(str(each) for each in services if each != name)
    if name not in services:
        raise TaskError(
            f"{path}: services: there is no service {name!r}. It is the one that the agent works in."
        )
    if others:
        raise TaskError(
            f"{path}: services: beside {name!r} there is {', '.join(others)}. A sandbox is one container "
            f"without a network: put what they serve into the image of {name!r}."
        )
    service = _filled(_mapping(services[name], path, name), {**os.environ, **known})
    context = _context(service.get("build"), path, name)
    image = service.get("image") or None
    return Service(
        image=str(image) if context is None and image is not None else context,
        workdir=service.get("working_dir") or None,
        env=_environment(service.get("environment"), path, name),
        without=tuple(_without(service)),
    )


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} is no YAML: {str(error)[:300]}.") from error


def _mapping(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TaskError(f"{path}: {key} must be a mapping, not {str(value)[:80]!r}.")
    return value


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    """Fills in variables. As in compose, an unset variable is empty."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _value(found, known), value)
    if isinstance(value, dict):
        return {str(key): _filled(each, known) for key, each in value.items()}
    return [_filled(each, known) for each in value] if isinstance(value, list) else value


def _value(match: re.Match[str], known: Mapping[str, str]) -> str:
    name = match[1] or match[2]
    if name is None:
        return "$"
    there = bool(known.get(name)) if (match[3] or "").startswith(":") else name in known
    return known[name] if there else (match[4] or "") if (match[3] or "").endswith("-") else ""


def _context(build: Any, path: Path, name: str) -> str | None:
    """The folder that the service is built from, in the form of `Task.image`."""
    if build is None:
        return None
    table = {"context": build} if isinstance(build, str) else _mapping(build, path, f"{name}.build")
    more = sorted(set(table) - {"context", "dockerfile", "network"})
    if more or table.get("dockerfile", "Dockerfile") not in ("Dockerfile", "./Dockerfile"):
        what = ", ".join(more) or f"dockerfile: {table['dockerfile']}"
        raise TaskError(
            f"{path}: {name}.build has {what}. A build is of a folder with its Dockerfile: say the rest in "
            "there."
        )
    folder = (path.parent / str(table.get("context") or ".")).resolve()
    if not (folder / "Dockerfile").is_file():
        raise TaskError(f"{path}: {name}.build: there is no {folder / 'Dockerfile'}.")
    return f"{CONTEXT}{folder}"


def _environment(value: Any, path: Path, name: str) -> dict[str, str]:
    if isinstance(value, list):
        pairs = [str(each).partition("=") for each in value]
        return {key: text if equals else os.environ.get(key, "") for key, equals, text in pairs}
    table = _mapping(value or {}, path, f"{name}.environment")
    return {key: os.environ.get(key, "") if each is None else _scalar(each) for key, each in table.items()}


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without(service: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(set(service) - _HARMLESS):
        value = service[key]
        if (
            key == "volumes"
            and isinstance(value, list)
            and all("logs" in str(each).lower() for each in value)
        ):
            continue
        if value:
            yield f"`{key}` of its compose service"
    command = service.get("command")
    words = command.split() if isinstance(command, str) else " ".join(map(str, command or ())).split()
    if not all(_WAITS.fullmatch(word.strip("'\"")) for word in words):
        yield "the command of its compose service, which is not started"
