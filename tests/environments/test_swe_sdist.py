"""Source distributions: downloaded once and checked, from any index that pip knows; without one, an error says what to do."""

import hashlib
import importlib.util
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from environments.swe.package import package, packages
from environments.swe.sdist import archive, texts
from harnessgym.errors import TaskError

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
        TaskError, match=r"itsdangerous==2\.2\.0 cannot be had: .*put the file at .*itsdangerous-2\.2\.0\.tar\.gz"
    ):
        archive(package(NAME))


def test_another_file_under_the_name_is_refused(alone, tmp_path):
    known, shelf = alone
    with tarfile.open(known) as whole:
        whole.extractall(tmp_path / "inside", filter="data")
    (tmp_path / "inside" / known.name.removesuffix(".tar.gz") / "README.md").write_text("changed")
    with tarfile.open(shelf / known.name, "w:gz") as changed:
        changed.add(tmp_path / "inside" / known.name.removesuffix(".tar.gz"), known.name.removesuffix(".tar.gz"))
    with pytest.raises(TaskError, match="cannot be had"):
        archive(package(NAME))


def test_texts_are_the_files_of_the_distribution():
    found = texts(package(NAME))
    assert found["src/itsdangerous/signer.py"].startswith("from __future__")
    assert not [path for path in found if path.startswith("/") or ".." in path]


def test_no_package_is_installed_where_agents_could_read_it():
    """What is installed beside HarnessGym can be read in a bubblewrap sandbox."""
    assert [name for name in packages() if importlib.util.find_spec(name) is not None] == []
