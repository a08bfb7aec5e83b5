"""The commands that take the future out of the repository that an image brings."""

import subprocess

import pytest

from harnessgym.grading.git_history import leaks
from harnessgym.tasks.swe_task import begun, scrubbed


def git(repo, *words):
    command = ["git", "-C", str(repo), "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().strip()


def commit(repo, text, name="a.py"):
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", text)
    return git(repo, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path):
    """A past, a base, a fix on `main` with a tag, a stash, a remote, a note; checked out at the base."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "past")
    commit(folder, "base")
    git(folder, "tag", "begin")
    commit(folder, "the fix")
    git(folder, "tag", "-a", "v2", "-m", "with the fix")
    git(folder, "clone", "-q", "--bare", str(folder), str(tmp_path / "origin"))
    git(folder, "remote", "add", "origin", str(tmp_path / "origin"))
    git(folder, "fetch", "-q", "origin")
    git(folder, "notes", "add", "-m", "note")
    (folder / "a.py").write_text("stashed fix")
    git(folder, "stash")
    git(folder, "checkout", "-q", "begin")
    git(folder, "gc", "-q")
    return folder


def run(setup, folder):
    for words in setup.run:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_nothing_is_left_but_the_past(repo):
    base = git(repo, "rev-parse", "begin")
    (repo / "untracked.txt").write_text("mine")
    (repo / "a.py").write_text("changed here")
    run(scrubbed(base), repo)
    assert leaks(repo, base) == []
    assert git(repo, "log", "--all", "--format=%s").split("\n") == ["base", "past"]
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(repo, "status", "--porcelain").split("\n") == ["M a.py", "?? untracked.txt"]
    git(repo, "fsck", "--full", "--strict")


def test_what_the_image_commits_on_top_is_one_commit(repo):
    base = git(repo, "rev-parse", "begin")
    commit(repo, "set up", "setup.py")
    commit(repo, "more of it", "setup.cfg")
    run(scrubbed(base), repo)
    tip = git(repo, "rev-parse", "HEAD")
    assert leaks(repo, tip) == []
    assert git(repo, "log", "--all", "--format=%s").split("\n") == ["Where the task begins", "base", "past"]
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "ls-files").split("\n") == ["a.py", "setup.cfg", "setup.py"]


def test_without_the_base_there_is_no_past(repo):
    run(scrubbed("1" * 40), repo)
    assert leaks(repo, git(repo, "rev-parse", "HEAD")) == []
    assert git(repo, "log", "--all", "--format=%s") == "Where the task begins"


def test_the_same_repository_is_left_each_time(repo, tmp_path):
    base = git(repo, "rev-parse", "begin")
    commit(repo, "set up", "setup.py")
    subprocess.run(["cp", "-a", str(repo), str(tmp_path / "other")], check=True)
    run(scrubbed(base), repo)
    run(scrubbed(base), tmp_path / "other")
    run(scrubbed(base), repo)
    assert git(repo, "rev-parse", "HEAD") == git(tmp_path / "other", "rev-parse", "HEAD")


def test_a_folder_without_a_repository_fails_and_says_so(tmp_path):
    words = scrubbed("1" * 40).run[0]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no repository there" in done.stderr


def test_files_become_a_repository(tmp_path):
    (tmp_path / "a.py").write_text("a\r\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "b.log").write_text("b")
    (tmp_path / ".harnessgym-1").mkdir()
    (tmp_path / ".harnessgym-1" / "x").write_text("ours")
    run(begun(ignored=True), tmp_path)
    assert git(tmp_path, "ls-files").split("\n") == [".gitignore", "a.py", "b.log"]
    assert git(tmp_path, "status", "--porcelain") == ""
    assert git(tmp_path, "log", "--format=%s|%aI") == "Where the task begins|2000-01-01T00:00:00+00:00"
