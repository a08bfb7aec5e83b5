"""Runs one of our programs in a fresh sandbox and reads what it says on its private descriptor.

Every line starts with a nonce. The code under test shares a process with the program, so it could learn the
nonce and speak for it; what comes back is data about that code, never about anything else.
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
    """What one run said."""

    lines: tuple[Mapping[str, Any], ...]
    foreign: int
    """Lines that the program did not write."""
    result: ExecResult

    @property
    def began(self) -> bool:
        """Whether the program was started at all."""
        return any("began" in line for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return not self.result.timed_out and bool(self.lines) and "ended" in self.lines[-1]

    @property
    def forged(self) -> bool:
        """Whether somebody else spoke: lines without the nonce, or more than one beginning or end."""
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
    """Runs the text of a program. Compiled files of the workspace are not read. Raises SandboxError."""
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
