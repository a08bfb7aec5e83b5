"""The Python that other proxies are installed with."""

import os

import pytest

from benchmarks.proxy.peers import find_python


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_that_does_not_run_is_passed_over(tmp_path):
    shim = program(tmp_path / "shims/python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    other = program(tmp_path / "other/python3.12", "echo Python 3.11.7")
    search_path = os.pathsep.join(str(path) for path in (tmp_path / "missing", shim.parent, other.parent))
    with pytest.raises(RuntimeError, match=r"need Python 3\.12"):
        find_python(search_path, tmp_path)
    of_pyenv = program(tmp_path / ".pyenv/versions/3.12.1/bin/python", "echo Python 3.12.1")
    assert find_python(search_path, tmp_path) == of_pyenv
    runs = program(tmp_path / "bin/python3.12", "echo Python 3.12.9")
    assert find_python(f"{search_path}{os.pathsep}{runs.parent}", tmp_path) == runs
