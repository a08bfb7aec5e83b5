"""Runs one of our programs in a fresh sandbox and reads what it writes to its private descriptor.

Every line starts with a nonce. The code under test shares a process with the program, so it could learn the
nonce and write lines of its own. The result therefore says something about that code only.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from harnessgym.grading.matching import parse_json
from harnessgym.sandbox import ExecResult, Sandbox


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one run."""

    lines: tuple[Mapping[str, Any], ...]
    foreign: int
    """Lines that the program did not write."""
    result: ExecResult

    @property
    def began(self) -> bool:
        """Whether the program started."""
        return any("began" in line for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether the program reached its end."""
        return not self.result.timed_out and bool(self.lines) and "ended" in self.lines[-1]

    @property
    def forged(self) -> bool:
        """Whether other code wrote lines: lines without the nonce, or more than one start or end."""
        edges = [sum(edge in line for line in self.lines) for edge in ("began", "ended")]
        return bool(self.foreign) or self.result.stdout_truncated or max(edges) > 1


async def probe(
    sandbox: Sandbox,
    program: str,
    job: Mapping[str, Any],
    timeout_s: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = ".",
) -> Probe:
    """Runs a program, given as text. Raises SandboxError."""
    # `pycache_prefix` names a folder that does not exist, because the agent can leave .pyc files in its
    # workspace that do not match their sources. `-I` keeps its environment and user site out.
    nonce = secrets.token_hex(16)
    sent = json.dumps({**job, "nonce": nonce}).encode()
    command = ["python3", "-I", "-B", "-X", f"pycache_prefix=/nonexistent/{nonce}", "-c", program]
    result = await sandbox.exec(command, stdin=sent, timeout_s=timeout_s, env=env, cwd=cwd)
    lines = []
    foreign = 0
    for line in result.stdout.splitlines():
        said = _said(line, nonce)
        if said is None:
            foreign += 1
        else:
            lines.append(said)
    return Probe(tuple(lines), foreign, result)


def _said(line: bytes, nonce: str) -> Mapping[str, Any] | None:
    start, _, rest = line.partition(b" ")
    if start != nonce.encode():
        return None
    try:
        parsed = parse_json(bytes.fromhex(rest.decode()))
    except ValueError:
        return None
    return parsed[0] if parsed is not None and isinstance(parsed[0], dict) else None


def program(name: str) -> str:
    """The text of a program in `runners/`."""
    return (files("harnessgym.grading.runners") / f"{name}.py").read_text()
