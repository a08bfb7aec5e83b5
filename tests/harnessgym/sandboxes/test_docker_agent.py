"""The agent's program: how it comes to be, and what it refuses."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.agent.wire import ExecRequest, agent_binary, compiler, pack_order

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


@needs_compiler
def test_it_is_compiled_once_however_many_ask(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(agent_binary, [tmp_path] * 8))
    (program,) = found
    made = program.stat()
    assert agent_binary(tmp_path) == program
    assert program.stat().st_mtime_ns == made.st_mtime_ns
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", program.name]


@needs_compiler
def test_it_needs_no_library_of_the_image(tmp_path):
    said = subprocess.run(
        ["file", agent_binary(tmp_path)], capture_output=True, text=True, check=False
    ).stdout
    headers = subprocess.run(
        ["readelf", "-l", agent_binary(tmp_path)], capture_output=True, text=True, check=False
    ).stdout
    assert headers or said
    assert "INTERP" not in headers
    assert "dynamically" not in said


@needs_compiler
def test_it_runs_as_process_1_and_as_nothing_else(tmp_path):
    done = subprocess.run(
        [agent_binary(tmp_path), "socket", "/tmp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "process 1" in done.stderr


def test_without_a_compiler_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SandboxError, match=r"no C compiler.*apt-get install gcc"):
        agent_binary(tmp_path / "cache")


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(SandboxError, match="no such library"):
        agent_binary(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize("order", [
    ExecRequest(argv=["a\0b"], env={}, cwd="/", user=1, timeout_s=1),
    ExecRequest(argv=["a"], env={"A": "\0"}, cwd="/", user=1, timeout_s=1),
    ExecRequest(argv=["a"], env={}, cwd="/\0", user=1, timeout_s=1),
])  # fmt: skip
def test_a_string_with_a_nul_is_refused(order):
    with pytest.raises(SandboxError, match="NUL"):
        pack_order(order)
