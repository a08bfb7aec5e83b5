"""Removes the future from a git repository: everything that is not an ancestor of the base commit.

Agents look for the solution with `git log --all`, in reflogs, tags, stashes and packs. `scrub` runs where a
repository is prepared, before any agent sees it, and removes the objects too. `leaks` lists what is left.
Both run git on this machine, on repositories of the task's author, with hooks, global settings and
replacements off.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harnessgym.errors import TaskError

BRANCH = "main"
"""The only branch that remains."""
_TIMEOUT_S = 600.0
_KEPT_HEADS = frozenset({"HEAD"})
_FOLDERS = (
    "logs", "worktrees", "rebase-merge", "rebase-apply", "sequencer", "modules", "lfs", "rr-cache",
    "branches", "remotes",
    "objects/info/commit-graphs",
)  # fmt: skip
"""Where git mentions other commits, besides refs and objects."""
_FILES = (
    "objects/info/alternates", "objects/info/http-alternates", "objects/info/commit-graph",
    "objects/info/packs",
    "objects/pack/multi-pack-index", "info/grafts", "info/refs", "gc.log", "MERGE_MSG", "SQUASH_MSG",
    "COMMIT_EDITMSG",
    "MERGE_MODE", "MERGE_RR", "TAG_EDITMSG", "NOTES_EDITMSG", "BISECT_LOG", "BISECT_NAMES", "BISECT_TERMS",
    "BISECT_START",
)  # fmt: skip
_SECTIONS = ("remote", "branch", "url", "submodule")


def scrub(repo: Path, base: str) -> str:
    """Checks out `base` as the branch `main` and removes everything that is not its past.

    Returns the commit's id. Untracked files stay. Raises TaskError when `repo` is no repository with its own
    `.git` folder, when `base` is no commit of it, or when something is left all the same.
    """
    inner = _git_folder(repo)
    commit = _commit(repo, base)
    # Detach first: every ref is removed below, and HEAD must not point to one of them by then. Borrowed
    # objects are copied before `_forget` removes the file that says where they are borrowed from.
    _git(repo, "checkout", "-q", "--force", "--detach", commit)
    _own_objects(repo, inner)
    _forget(repo, inner)
    _git(repo, "update-ref", f"refs/heads/{BRANCH}", commit)
    _git(repo, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    _git(repo, "reset", "-q", "--hard", commit)
    # `reset` writes ORIG_HEAD again. Only now are the future's objects unreachable, so that pruning drops
    # them.
    for name in ("ORIG_HEAD", "logs"):
        _remove(inner / name)
    _git(repo, "repack", "-q", "-n", "-a", "-d")
    _git(repo, "prune", "--expire=now")
    left = leaks(repo, commit)
    if left:
        raise TaskError(
            f"{repo} still knows what comes after {commit[:12]}: {'; '.join(left)}. Prepare it from a fresh "
            "clone."
        )
    return commit


def leaks(repo: Path, base: str) -> list[str]:
    """Everything in `repo` that is not the past of `base`: refs, objects, logs, and git's other files."""
    inner = _git_folder(repo)
    commit = _commit(repo, base)
    past = {line.split(" ")[0] for line in _lines(repo, "rev-list", "--objects", commit)}
    leak_descriptions = [f"object {id_[:12]} ({kind})" for id_, kind in _objects(repo) if id_ not in past]
    refs = [f"ref {ref}" for ref in _refs(repo) if _lines(repo, "rev-parse", ref)[0] not in past]
    head = _lines(repo, "rev-parse", "HEAD")[0]
    leak_descriptions += refs if head == commit else [*refs, f"HEAD is {head[:12]}"]
    leak_descriptions += [
        f"ref {ref}"
        for ref in _refs(repo)
        if ref.startswith(("refs/remotes/", "refs/tags/", "refs/stash", "refs/notes/"))
    ]
    leak_descriptions += [f"file .git/{name}" for name in (*_FOLDERS, *_FILES) if _holds(inner / name)]
    leak_descriptions += [f"file .git/{path.name}" for path in _other_heads(inner)]
    return leak_descriptions + [f"setting {key}" for key in _settings(repo)]


def _git_folder(repo: Path) -> Path:
    inner = repo / ".git"
    if not inner.is_dir() or inner.is_symlink():
        raise TaskError(
            f"{repo} has no .git folder of its own. Prepare the repository itself, not a worktree or a "
            "submodule."
        )
    if (inner / "reftable").exists():
        raise TaskError(
            f"{repo} keeps its refs as a reftable. Make it a repository with plain refs: `git refs migrate`."
        )
    return inner


def _commit(repo: Path, base: str) -> str:
    done = _run(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if done.returncode != 0:
        raise TaskError(f"{repo} has no commit {base!r}. Give a commit, a branch or a tag of it.")
    return done.stdout.decode().strip()


def _own_objects(repo: Path, inner: Path) -> None:
    """Copies objects that are borrowed from other repositories, and removes the files that protect packs."""
    if (inner / "objects/info/alternates").exists():
        _git(repo, "repack", "-q", "-n", "-a", "-d")
    # `repack -d` never deletes a pack with one of these files beside it, and the future could be in that
    # pack.
    for pattern in ("*.keep", "*.promisor", "*.bitmap", "*.mtimes", "tmp_*"):
        for path in (inner / "objects/pack").glob(pattern):
            path.unlink()


def _forget(repo: Path, inner: Path) -> None:
    for name in (*_FOLDERS, *_FILES, "packed-refs", "refs"):
        _remove(inner / name)
    (inner / "refs/heads").mkdir(parents=True)
    (inner / "refs/tags").mkdir()
    for path in _other_heads(inner):
        _remove(path)
    sections = {
        key.split(".")[0] if key.count(".") == 1 else key.rsplit(".", 1)[0] for key in _settings(repo)
    }
    for section in sorted(sections):
        _run(repo, "config", "--local", "--remove-section", section)
    for key in ("extensions.partialclone", "core.alternaterefscommand", "extensions.worktreeconfig"):
        _run(repo, "config", "--local", "--unset-all", key)


def _other_heads(inner: Path) -> list[Path]:
    """`ORIG_HEAD`, `FETCH_HEAD`, `AUTO_MERGE` and similar files."""
    names = [path for path in inner.iterdir() if path.name.endswith("_HEAD") or path.name == "AUTO_MERGE"]
    return sorted(path for path in names if path.name not in _KEPT_HEADS)


def _settings(repo: Path) -> list[str]:
    """Settings that name other repositories or branches."""
    keys = [line.partition("=")[0] for line in _lines(repo, "config", "--local", "--list")]
    return [
        key
        for key in keys
        if key.split(".")[0].lower() in _SECTIONS or key.lower() == "extensions.partialclone"
    ]


def _refs(repo: Path) -> list[str]:
    return _lines(repo, "for-each-ref", "--format=%(refname)")


def _objects(repo: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(
        repo, "cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname) %(objecttype)"
    ):
        id_, kind = line.split(" ")
        yield id_, kind


def _holds(path: Path) -> bool:
    return any(child.is_file() for child in path.rglob("*")) if path.is_dir() else path.exists()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _lines(repo: Path, *words: str) -> list[str]:
    return _git(repo, *words).decode(errors="surrogateescape").splitlines()


def _git(repo: Path, *words: str) -> bytes:
    done = _run(repo, *words)
    if done.returncode != 0:
        stderr = done.stderr.decode(errors="replace").strip()
        raise TaskError(
            f"`git {' '.join(words)}` failed in {repo}: {stderr or f'exit status {done.returncode}'}."
        )
    return done.stdout


def _run(repo: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    # The repository may be anybody's, and its settings could run programs. The variables and options below
    # keep out this machine's git settings, hooks, file monitors, replacement objects, and the network.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    env |= {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_CEILING_DIRECTORIES": str(repo.resolve().parent)}
    plain = [
        "-c",
        f"core.hooksPath={os.devnull}",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "gc.auto=0",
        "-c",
        "safe.directory=*",
    ]
    plain += [
        "-c",
        "core.logAllRefUpdates=false",
        "-c",
        "repack.writeBitmaps=false",
        "-c",
        "protocol.allow=never",
    ]
    command = ["git", "-C", str(repo), *plain, *words]
    try:
        return subprocess.run(
            command, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise TaskError(
            "git is not installed on this machine, and a task has a repository. Install it."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TaskError(
            f"`git {' '.join(words)}` in {repo} did not end within {_TIMEOUT_S:.0f} s."
        ) from error
