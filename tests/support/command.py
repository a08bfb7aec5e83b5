"""A command of `harnessgym` in the process of the test, for what a test asks about anything but processes."""

import io
import signal
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from harnessgym.cli import main

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
"""Signals that a command may handle in its own way until it ends."""


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


def run_here(words: Iterable[object], **env: str) -> Finished:
    """Run `harnessgym WORDS` as its entry point does, with these environment variables.

    An exception that the entry point would print as a traceback comes through.
    """
    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        # The command's name in its usage, and what `look_in` adds for the command's time only.
        patch.setattr(sys, "argv", ["harnessgym"])
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        for name, value in {"NO_COLOR": "1", "COLUMNS": "160", **env}.items():
            patch.setenv(name, value)
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Finished(status, stdout.getvalue(), stderr.getvalue())
