"""Histories of repositories: what is cut off, and what is said of a stream that cannot be used."""

import os
import subprocess

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.native import past_of


@pytest.fixture
def repository(tmp_path):
    """Commits contents of `a` one after another; returns the stream and the commits' ids."""
    folder = tmp_path / "repository"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}

    def git(*words):
        return subprocess.run(
            ["git", "-C", str(folder), *words], env=env, capture_output=True, check=True
        ).stdout

    def commit(*contents):
        git("init", "-q", "-b", "main", ".")
        ids = []
        for content in contents:
            (folder / "a").write_bytes(content)
            git("add", "-A")
            git("commit", "-q", "-m", "change")
            ids.append(git("rev-parse", "HEAD").decode().strip())
        stream = tmp_path / "history.stream"
        stream.write_bytes(git("fast-export", "--all"))
        return stream, ids

    return commit


def test_the_past_ends_at_the_base_and_keeps_its_id(repository):
    stream, (_, second, _) = repository(b"one\n", b"two\n", b"three\n")
    past, commit = past_of(stream, second)
    assert commit == second
    assert "one\n" in past
    assert "two\n" in past
    assert "three" not in past


def test_a_branch_names_its_last_commit(repository):
    stream, ids = repository(b"one\n", b"two\n")
    assert past_of(stream, "main")[1] == ids[-1]


def test_the_past_of_a_past_is_the_same(repository, tmp_path):
    stream, ids = repository(b"one\n", b"two\n")
    past, commit = past_of(stream, ids[0])
    again = tmp_path / "again.stream"
    again.write_text(past)
    assert past_of(again, commit) == (past, commit)


def test_bytes_before_the_base_must_be_text_and_later_ones_need_not(repository):
    stream, ids = repository(b"text\n", b"\xff\n")
    assert past_of(stream, ids[0])[1] == ids[0]
    with pytest.raises(
        TaskError, match=r"history\.stream holds files that are not UTF-8 text up to"
    ) as error:
        past_of(stream, ids[1])
    assert "Make them in `setup.run`" in str(error.value)


def test_a_stream_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"repo\.history cannot be read: No such file or directory"):
        past_of(tmp_path / "absent.stream", "main")


def test_what_is_no_stream_is_what_git_says(tmp_path):
    (tmp_path / "a.stream").write_text("no stream at all\n")
    with pytest.raises(
        TaskError, match=r"`git fast-import --quiet` failed .*: fatal: Unsupported command: no"
    ):
        past_of(tmp_path / "a.stream", "main")


def test_an_unknown_base_is_named(repository):
    stream, _ = repository(b"one\n")
    with pytest.raises(TaskError, match="no-such-branch"):
        past_of(stream, "no-such-branch")
