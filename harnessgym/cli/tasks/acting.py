"""What a person does in an agent's place: one command, or lines that are typed and run one after another."""

import asyncio
import posixpath
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from harnessgym.sandbox import Sandbox

_WELCOME = """\
Each line is run by sh in the agent's sandbox; the folder is kept from line to line, variables are not. There is no terminal
inside. `exit` or Ctrl-D grades what is left."""
_LINE = (
    'cd -- "$1" 2>/dev/null; mark=$2; eval "$3"; status=$?; printf "\\n%s%s\\n" "$mark" "$PWD"; exit $status'
)


class Act(Protocol):
    """Something done in a sandbox."""

    output: bytes
    """What it printed."""

    async def __call__(self, sandbox: Sandbox) -> None:
        """Does it. However a command ends, that is no error."""
        ...


class Command:
    """One command, whose output is shown as it comes."""

    def __init__(self, words: Sequence[str], timeout_s: float | None, quiet: bool) -> None:
        self.output = b""
        self._words = words
        self._timeout_s = timeout_s
        self._quiet = quiet

    async def __call__(self, sandbox: Sandbox) -> None:
        """See `Act`."""
        done = await sandbox.exec(
            self._words, timeout_s=self._timeout_s, on_output=None if self._quiet else _show
        )
        self.output = done.stdout + done.stderr
        if not self._quiet and not done.ok:
            sys.stderr.write(f"[{done.ending}]\n")


class Lines:
    """Lines from the terminal."""

    def __init__(self, timeout_s: float | None, read: Callable[[str], str] = input) -> None:
        self.output = b""
        self._timeout_s = timeout_s
        self._read = read
        self._folder = "."

    async def __call__(self, sandbox: Sandbox) -> None:
        """See `Act`."""
        sys.stderr.write(f"{_WELCOME}\n")
        while (line := await asyncio.to_thread(self._asked)) is not None:
            if line.strip():
                await self._run(sandbox, line)

    def _asked(self) -> str | None:
        try:
            line = self._read(f"{posixpath.basename(self._folder)}$ ")
        except EOFError:
            return None
        return None if line.strip() == "exit" else line

    async def _run(self, sandbox: Sandbox, line: str) -> None:
        mark = secrets.token_hex(8)
        words = ["sh", "-c", _LINE, "sh", self._folder, mark, line]
        shown = _Shown(mark.encode())
        done = await sandbox.exec(words, timeout_s=self._timeout_s, on_output=shown)
        shown.end()
        before, marked, folder = done.stdout.rpartition(mark.encode())
        self.output += (before[:-1] if marked else done.stdout) + done.stderr
        if marked:
            self._folder = folder.strip().decode(errors="replace") or "."
        if not done.ok:
            sys.stderr.write(f"[{done.ending}]\n")


class _Shown:
    """Output on its way to the terminal, but for the last line of stdout, which says where the shell was."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = b""

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Shows all but what could be the beginning of the mark's line."""
        if stream == "stderr":
            _show(stream, data)
            return
        self._held += data
        cut = self._held.rfind(b"\n", 0, max(0, len(self._held) - 1))
        if self._mark not in self._held and cut > 0:
            _show(stream, self._held[:cut])
            self._held = self._held[cut:]

    def end(self) -> None:
        """Shows the rest."""
        rest = self._held.rpartition(b"\n" + self._mark)[0] if self._mark in self._held else self._held
        _show("stdout", rest if not rest or rest.endswith(b"\n") else rest + b"\n")


def _show(stream: Literal["stdout", "stderr"], data: bytes) -> None:
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.write(data.decode(errors="replace"))
    out.flush()
