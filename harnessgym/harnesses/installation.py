"""Installs agents on this machine. Each step of a harness runs only once.

A finished step leaves its digest in the folder. So equal steps of several harnesses run once, and a failed
installation resumes at the failed step. Concurrent installations wait for each other.
"""

import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harnessgym.errors import HarnessError
from harnessgym.sandbox import InstallStep

_TAIL = 2_000


def installed(steps: Sequence[InstallStep], folder: Path) -> bool:
    """Whether all steps have run."""
    return all(_mark(step, folder).exists() for step in steps)


def install(steps: Sequence[InstallStep], folder: Path) -> None:
    """Run the steps that have not run yet, in order, with this process's environment and the step's own.

    Raises `HarnessError` with the step's output if one fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        # Marks are read under the lock: another process may have run the step while this one waited.
        for step in steps:
            mark = _mark(step, folder)
            if mark.exists():
                continue
            _run(step)
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(" ".join(step.argv))


def _run(step: InstallStep) -> None:
    try:
        done = subprocess.run(
            step.argv, env={**os.environ, **step.env}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise HarnessError(
            f"Cannot run {step.argv[0]!r} to install an agent: {error}. Is it on the path?"
        ) from error
    if done.returncode:
        output = (done.stderr or done.stdout)[-_TAIL:].strip()
        raise HarnessError(
            f"Installing an agent failed: {' '.join(step.argv)} exited with {done.returncode}.\n{output}"
        )


def _mark(step: InstallStep, folder: Path) -> Path:
    text = json.dumps([step.argv, sorted(step.env.items())])
    return folder / ".steps" / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    # A flock ends with its process, so a killed installation leaves no stale lock.
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
