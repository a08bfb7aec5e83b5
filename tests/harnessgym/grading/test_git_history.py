"""A scrubbed repository knows nothing of its future, wherever git might have kept it."""

import os
import subprocess

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.git_history import leaks, scrub

SECRET = "the-fix-nobody-may-see"


def git(folder, *words, ok=True):
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}
    command = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done.stdout.strip()


def commit(folder, name, text, message):
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path):
    """Two commits, the base, and a future with the fix."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", ".")
    commit(folder, "a.txt", "one\n", "one")
    commit(folder, "a.txt", "two\n", "two")
    git(folder, "tag", "base")
    commit(folder, "a.txt", f"{SECRET}\n", f"fix: {SECRET}")
    return folder


def branch(repo):
    git(repo, "branch", "fix")


def light_tag(repo):
    git(repo, "tag", "v2")


def annotated_tag(repo):
    git(repo, "tag", "-a", "v2", "-m", SECRET)


def remote(repo):
    other = repo.parent / "other"
    git(repo.parent, "clone", "-q", str(repo), str(other))
    git(repo, "remote", "add", "origin", str(other))
    git(repo, "fetch", "-q", "origin")


def reflog_only(repo):
    git(repo, "reset", "-q", "--hard", "base")


def packed(repo):
    branch(repo)
    git(repo, "pack-refs", "--all")
    git(repo, "gc", "-q")


def kept_pack(repo):
    git(repo, "gc", "-q")
    for pack in (repo / ".git/objects/pack").glob("*.pack"):
        pack.with_suffix(".keep").write_text("")
    git(repo, "reset", "-q", "--hard", "base")


def stash(repo):
    (repo / "a.txt").write_text(f"{SECRET} stashed\n")
    git(repo, "stash", "-q")


def notes(repo):
    git(repo, "notes", "add", "-m", SECRET, "base")


def worktree(repo):
    git(repo, "worktree", "add", "-q", "-b", "side", str(repo.parent / "side"))


def interrupted_merge(repo):
    git(repo, "checkout", "-q", "-b", "clash", "base")
    commit(repo, "a.txt", "clash\n", "clash")
    git(repo, "merge", "main", ok=False)


def staged(repo):
    git(repo, "reset", "-q", "--hard", "base")
    (repo / "b.txt").write_text(SECRET)
    git(repo, "add", "b.txt")


def alternates(repo):
    other = repo.parent / "borrowing"
    git(repo.parent, "clone", "-q", "--shared", str(repo), str(other))
    repo.rename(repo.parent / "lender")
    other.rename(repo)
    lender = repo.parent / "lender/.git/objects\n"
    (repo / ".git/objects/info/alternates").write_text(str(lender))


def replaced(repo):
    git(repo, "replace", "base", "main")


def dangling(repo):
    (repo / "c.txt").write_text(f"{SECRET} dangling")
    git(repo, "hash-object", "-w", "c.txt")
    (repo / "c.txt").unlink()


def commit_graph(repo):
    git(repo, "commit-graph", "write", "--reachable")
    git(repo, "multi-pack-index", "write", ok=False)


def bundle_ref(repo):
    git(repo, "update-ref", "refs/hidden/pull/7", "main")


def rebase_stopped(repo):
    git(repo, "checkout", "-q", "-b", "clash", "base")
    commit(repo, "a.txt", "clash\n", "clash")
    git(repo, "rebase", "main", ok=False)


WAYS = [
    branch, light_tag, annotated_tag, remote, reflog_only, packed, kept_pack, stash, notes, worktree, interrupted_merge, staged,
    alternates, replaced, dangling, commit_graph, bundle_ref, rebase_stopped,
]  # fmt: skip


def everything_in(repo):
    """Every object's content, and every file of `.git` as it is."""
    ids = [
        line.split()[0] for line in git(repo, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
    ]
    objects = [git(repo, "cat-file", "-p", each) for each in ids]
    files = [
        path.read_bytes().decode(errors="replace") for path in (repo / ".git").rglob("*") if path.is_file()
    ]
    return "\n".join(objects + files)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_of_the_future_is_left(repo, way):
    base = git(repo, "rev-parse", "base")
    future = git(repo, "rev-parse", "main")
    way(repo)
    assert leaks(repo, base), "the way under test leaks"
    assert scrub(repo, base) == base
    assert leaks(repo, base) == []
    assert git(repo, "log", "--all", "--format=%s").splitlines() == ["two", "one"]
    assert git(repo, "log", "--all", "-S", SECRET) == ""
    assert git(repo, "reflog", "--all") == ""
    assert git(repo, "cat-file", "-e", future, ok=False) == ""
    assert future not in git(repo, "cat-file", "--batch-all-objects", "--batch-check")
    everything = everything_in(repo)
    assert SECRET not in everything
    assert future not in everything
    assert (repo / "a.txt").read_text() == "two\n"
    assert git(repo, "status", "--porcelain") in ("", "?? b.txt")
    git(repo, "fsck", "--full")


def test_all_ways_at_once(repo):
    for way in (annotated_tag, remote, stash, notes, worktree, dangling, packed, bundle_ref, commit_graph):
        way(repo)
    scrub(repo, "base")
    assert SECRET not in everything_in(repo)
    assert git(repo, "branch", "--all") == "* main"


def test_a_scrubbed_repository_can_be_worked_in(repo):
    base = scrub(repo, "base")
    new = commit(repo, "n.txt", "new", "new")
    assert git(repo, "rev-parse", "HEAD~1") == base
    found = leaks(repo, base)
    assert any(new[:12] in leak for leak in found)


def test_hooks_of_the_repository_do_not_run(repo):
    for name in ("post-checkout", "reference-transaction", "post-rewrite"):
        hook = repo / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {repo.parent}/ran\n")
        hook.chmod(0o755)
    scrub(repo, "base")
    assert not (repo.parent / "ran").exists()


@pytest.mark.parametrize("base", ["no-such-branch", "--all", "0" * 40, ""])
def test_a_base_that_is_no_commit_is_named(repo, base):
    with pytest.raises(TaskError, match="has no commit"):
        scrub(repo, base)


def test_what_is_no_repository_is_refused(tmp_path, repo):
    with pytest.raises(TaskError, match=r"has no \.git folder of its own"):
        scrub(tmp_path, "main")
    worktree(repo)
    with pytest.raises(TaskError, match=r"has no \.git folder of its own"):
        scrub(repo.parent / "side", "base")
