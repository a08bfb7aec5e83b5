"""Source distributions: downloaded once and checked, from any index that pip knows; without one, an error
says what to do.
"""

import hashlib
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from environments.swe.package import package
from environments.swe.sdist import archive, texts
from harnessgym.errors import TaskError
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.task import Limits
from harnessgym.tasks.source import task_set

NAME = "itsdangerous"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty cache, and a folder as the only place where pip looks."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    known = archive(package(NAME))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return known, shelf


def test_it_is_downloaded_once_however_many_ask(alone, tmp_path):
    known, shelf = alone
    shutil.copy(known, shelf)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(archive, [package(NAME)] * 4))
    assert len(found) == 1
    path = found.pop()
    assert path.is_relative_to(tmp_path / "cache")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package(NAME).sha256
    shutil.rmtree(shelf)
    assert archive(package(NAME)) == path
    assert [each.name for each in path.parent.iterdir() if not each.name.endswith((".gz", ".lock"))] == []


def test_what_was_cut_off_is_downloaded_again(alone):
    known, shelf = alone
    shutil.copy(known, shelf)
    path = archive(package(NAME))
    path.write_bytes(path.read_bytes()[:100])
    assert hashlib.sha256(archive(package(NAME)).read_bytes()).hexdigest() == package(NAME).sha256


def test_without_an_index_the_error_says_what_to_do(alone):
    with pytest.raises(
        TaskError,
        match=r"itsdangerous==2\.2\.0 is not available: .*put the file at .*itsdangerous-2\.2\.0\.tar\.gz",
    ):
        archive(package(NAME))


def test_another_file_under_the_name_is_refused(alone, tmp_path):
    known, shelf = alone
    with tarfile.open(known) as whole:
        whole.extractall(tmp_path / "inside", filter="data")
    (tmp_path / "inside" / known.name.removesuffix(".tar.gz") / "README.md").write_text("changed")
    with tarfile.open(shelf / known.name, "w:gz") as changed:
        changed.add(
            tmp_path / "inside" / known.name.removesuffix(".tar.gz"), known.name.removesuffix(".tar.gz")
        )
    with pytest.raises(TaskError, match="is not available"):
        archive(package(NAME))


def test_texts_are_the_files_of_the_distribution():
    found = texts(package(NAME))
    assert found["src/itsdangerous/signer.py"].startswith("from __future__")
    assert not [path for path in found if path.startswith("/") or ".." in path]


_SEARCH = """
import hashlib, os, sys
known = set(sys.stdin.read().split())
for root in {sys.prefix, sys.base_prefix, "/usr", "/opt"}:
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    data = open(path, "rb").read()
                except OSError:
                    continue
                if hashlib.sha256(data).hexdigest() in known:
                    print(path)
"""


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_no_solution_lies_where_an_agent_could_read_it(tmp_path):
    """Other versions of a package may: what is looked for is the text that a task's solution restores."""
    golds = {
        text
        for split in ("train", "test")
        for task in task_set("swe").tasks(split)
        for text in task.solution.files.values()
    }
    known = "\n".join(hashlib.sha256(text.encode()).hexdigest() for text in golds)
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path)) as backend,
        backend.open(Limits(wall_s=200)) as sandbox,
    ):
        found = await sandbox.exec(["python3", "-c", _SEARCH], stdin=known.encode(), timeout_s=200)
    assert found.ok, found.stderr
    assert found.stdout == b""
