"""Checks a rule about one path of an exported workspace. The workspace is hostile: no content of it raises.

Imports only the standard library and `matching`, because it is also copied into the test scripts of written
tasks, which run without HarnessGym.
"""

import os
import re
from pathlib import Path
from typing import Any

from harnessgym.grading.matching import matches, parse_json, same

_MAX_BYTES = 1 << 20
_MISSING = object()


def broken(rule: Any, workspace: Path) -> str:
    """How a rule is broken, or an empty string. `rule` has the attributes of
    `harnessgym.grading.checks.files.FileRule`.
    """
    path = workspace / rule.path
    if rule.absent:
        return "it is there" if os.path.lexists(path) else ""
    if rule.folder:
        return "" if path.is_dir() else "there is no such folder"
    if not path.is_file() or not path.resolve().is_relative_to(workspace.resolve()):
        return "there is no such file"
    if rule.executable is not None and bool(path.stat().st_mode & 0o100) != rule.executable:
        return "it must be executable" if rule.executable else "it must not be executable"
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        return f"it is larger than {_MAX_BYTES} bytes"
    return _wrong_content(rule, data)


def _wrong_content(rule: Any, data: bytes) -> str:
    if rule.content is not None and not matches(data, rule.content, rule.match, rule.tolerance):
        return f"it holds something else: {data[:200].decode(errors='replace')!r}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8 text" if rule.pattern or rule.forbidden or rule.parsed else ""
    if rule.pattern and not re.search(rule.pattern, text, re.MULTILINE):
        return f"{rule.pattern!r} is not found in it"
    if rule.forbidden and re.search(rule.forbidden, text, re.MULTILINE):
        return f"{rule.forbidden!r} is found in it"
    return _wrong_values(rule, text) if rule.parsed else ""


def _wrong_values(rule: Any, text: str) -> str:
    parsed = parse_json(text) if rule.parsed == "json" else _parse_toml(text)
    if parsed is None:
        return f"it is no {rule.parsed.upper()}"
    for dotted, expected in rule.values.items():
        actual = _at(parsed[0], dotted)
        if actual is _MISSING or not same(actual, expected, rule.tolerance):
            return f"{dotted} is {'missing' if actual is _MISSING else repr(actual)[:200]}"
    return ""


def _parse_toml(text: str) -> tuple[Any] | None:
    import tomllib

    try:
        return (tomllib.loads(text),)
    except (ValueError, RecursionError):
        return None


def _at(value: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _MISSING
    return value
