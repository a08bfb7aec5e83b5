"""Cuts the repository of a task, given as a `git fast-import` stream, at the base commit.

The stream is imported on this machine, the future is removed, and the rest is exported as a stream again. So
the text that enters the sandbox has nothing else. Commit ids do not change.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.grading.git_history import BRANCH, scrub

STREAM = ".history.stream"
"""Path of the stream in the workspace, until the set-up imports it."""
SETUP = (
    f"git init -q -b {BRANCH} . && git fast-import --quiet <{STREAM} && git reset -q --mixed {BRANCH} && rm "
    f"{STREAM} "
    "&& git checkout-index -a -q && git config user.name agent && git config user.email agent@localhost && "
    "rm -rf .git/logs"
)
"""The command that imports it. The task's other files stay as they are."""


def past_of(stream: Path, base: str) -> tuple[str, str]:
    """The stream of everything up to `base`, and that commit's id. Raises TaskError if that fails."""
    with tempfile.TemporaryDirectory(prefix="harnessgym-history-") as temporary:
        folder = Path(temporary)
        _git(folder, "init", "-q", "-b", BRANCH, ".")
        _git(folder, "fast-import", "--quiet", stdin=_read(stream))
        commit = scrub(folder, base)
        past = _git(folder, "fast-export", "--reencode=no", "--signed-tags=strip", BRANCH)
    try:
        return past.decode(), commit
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{stream} holds files that are not UTF-8 text up to {base!r}. Make them in `setup.run`."
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(
            f"{path}: repo.history cannot be read: {error.strerror}. Write it with `git fast-export`."
        ) from error


def _git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    # Settings of this machine's user could change the exported text, and with it the task's digest.
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], input=stdin, env=env, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise TaskError(
            "git is not installed on this machine, and a task has a repository. Install it."
        ) from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        # After the error, `fast-import` names a crash report, which is gone with the temporary folder.
        reason = [line for line in lines if line.startswith("fatal:")] or lines
        raise TaskError(
            f"`git {' '.join(words)}` failed for a task's history: {''.join(reason[-1:]) or done.returncode}."
        )
    return done.stdout
