"""Compiled Python of the agent's is never graded: a .pyc file whose code is not that of its source gains nothing."""

import importlib.util
import shutil

import pytest

from harnessgym.grading.bytecode import command, is_compiled, remove_compiled
from harnessgym.grading.check import CheckContext, read_checks
from harnessgym.grading.runners.contained import lay
from harnessgym.grading.upload import holding
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

WRONG = "def double(x):\n    return x\n"
RIGHT = "def double(x):\n    return 2 * x\n"
TEST = "import work\n\n\ndef test_double():\n    assert work.double(4) == 8\n"
CHECKS = {
    "pytest": {"kind": "pytest", "files": ["test_work.py"], "expect": ["test_work.py::test_double"]},
    "call": {"kind": "call", "module": "work", "function": "double", "cases": [{"args": [4], "result": 8}]},
    "asserts": {"kind": "asserts", "module": "work", "function": "double"},
    "io": {
        "kind": "io",
        "command": ["python3", "-c", "import work; print(work.double(4))"],
        "cases": [{"stdout": "8"}],
    },
}
FILES = {
    "test_work.py": TEST,
    "test.py": "def check(candidate):\n    assert candidate(4) == 8\n",
    "reference.py": RIGHT,
}


def unchecked(source, path="work.py"):
    """A .pyc file that Python does not compare with its source."""
    code = compile(source, path, "exec")
    return bytes(importlib._bootstrap_external._code_to_hash_pyc(code, bytes(8), checked=False))


def hidden(name="work"):
    """A right answer in a compiled file, where Python looks for one beside a source, and where there is none."""
    return {
        importlib.util.cache_from_source(f"{name}.py"): unchecked(RIGHT),
        f"__pycache__/{name}.cpython-311-pytest-8.3.4.pyc": unchecked(RIGHT),
    }


def write(folder, files):
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data if isinstance(data, bytes) else data.encode())


@pytest.mark.anyio
@pytest.mark.parametrize("kind", CHECKS)
async def test_code_in_a_compiled_file_is_not_rewarded(backend, grade, make_task, kind):
    task = make_task(CHECKS[kind], test_files=FILES)
    assert (await grade(backend, task, {"work.py": RIGHT})).rewards == {"reward": 1.0}
    found = await grade(backend, task, {"work.py": WRONG, **hidden()})
    assert found.rewards == {"reward": 0.0}, found
    found = await grade(backend, task, {"work.pyc": unchecked(RIGHT)})
    assert found.rewards == {"reward": 0.0}, found


@pytest.mark.anyio
@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("sourceless", [False, True])
async def test_it_is_not_read_where_it_is_an_artifact(tmp_path, anyio_backend, kind, sourceless):
    """The programs that import the workspace read sources alone, whatever lies in the sandbox."""
    write(tmp_path / "left", {"work.pyc": unchecked(RIGHT)} if sourceless else {"work.py": WRONG, **hidden()})
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        fresh = holding(tmp_path / "left", lambda: backend.open(Limits(), Equipment(proxy=False)))
        (check,) = read_checks([CHECKS[kind]], FILES, "here")
        outcome = await check.run(CheckContext(tmp_path / "left", fresh, FILES, "here"))
    if kind == "io" and sourceless:
        # A program of the task's own choosing: its output is compared, and what is named may be run.
        assert outcome.passed
    else:
        assert not outcome.passed, outcome


@pytest.mark.anyio
async def test_an_archive_in_place_of_a_folder_is_not_imported_from(tmp_path, anyio_backend):
    write(tmp_path / "inside", {"work.pyc": unchecked(RIGHT)})
    (tmp_path / "left").mkdir()
    shutil.make_archive(str(tmp_path / "src"), "zip", tmp_path / "inside")
    (tmp_path / "src.zip").rename(tmp_path / "left" / "src")
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        fresh = holding(tmp_path / "left", lambda: backend.open(Limits(), Equipment(proxy=False)))
        (check,) = read_checks([{**CHECKS["pytest"], "sources": ["src"]}], FILES, "here")
        outcome = await check.run(CheckContext(tmp_path / "left", fresh, FILES, "here"))
    assert not outcome.passed, outcome


@pytest.mark.anyio
async def test_the_interpreters_own_library_keeps_its_compiled_files(tmp_path, anyio_backend):
    program = "import sys, json; print(type(json.__loader__).__name__, sys.argv[1:], __name__)"
    async with (
        ProcessBackend(ProcessSettings(workspace_root=tmp_path)) as backend,
        backend.open(Limits()) as s,
    ):
        result = await s.exec([*command(program), "an argument"], timeout_s=20)
    assert result.stdout.decode().split("\n")[0] == "SourceFileLoader ['an argument'] __main__"


def test_what_the_task_names_stays(tmp_path):
    files = ("a.py", "a.pyc", "pkg/__pycache__/b.cpython-311.pyc", "pkg/__pycache__/notes/x", "data/x.pyc")
    write(tmp_path, dict.fromkeys(files, b""))
    (tmp_path / "link.pyc").symlink_to("a.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__pycache__").symlink_to("../data")
    removed = remove_compiled(tmp_path, (".", "data/x.pyc"))
    assert removed == (
        "a.pyc",
        "link.pyc",
        "other/__pycache__",
        "pkg/__pycache__/b.cpython-311.pyc",
        "pkg/__pycache__/notes/x",
    )
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "a.py",
        "data/x.pyc",
    ]
    assert not (tmp_path / "pkg/__pycache__").exists()


def test_a_folder_that_cannot_be_written_is_no_hiding_place(tmp_path):
    write(tmp_path, {"pkg/__pycache__/b.pyc": b""})
    (tmp_path / "pkg/__pycache__").chmod(0o500)
    assert remove_compiled(tmp_path) == ("pkg/__pycache__/b.pyc",)


def test_which_paths_are_compiled():
    assert [is_compiled(path) for path in ("a.pyc", "a/__pycache__/x", "a.py", "a.pyc/x", ".")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.anyio
@pytest.mark.docker
async def test_a_compiled_file_of_the_image_is_laid_again(docker, tmp_path):
    """As the image has it, not as the agent left it."""
    write(tmp_path, {"Dockerfile": "FROM harnessgym/python\nCOPY app /app\nWORKDIR /app\n"})
    write(tmp_path / "app", {"lib/old.pyc": b"of the image", "lib/a.txt": b""})
    write(tmp_path / "left", {"lib/a.txt": b""})
    where = Equipment(image=f"context:{tmp_path}", home="/app", proxy=False)
    fresh = holding(tmp_path / "left", lambda: docker.open(Limits(), where), ("lib/old.pyc", "lib/new.pyc"))
    async with fresh() as sandbox:
        assert await sandbox.read("lib/old.pyc") == b"of the image"
        with pytest.raises(FileNotFoundError):
            await sandbox.read("lib/new.pyc")


def test_a_harbor_script_lays_none_either(tmp_path, monkeypatch):
    write(tmp_path / "work", {"pkg/a.py": b"", "pkg/__pycache__/a.pyc": b"", "b.pyc": b"named", "c.pyc": b""})
    monkeypatch.chdir(tmp_path / "work")
    lay([".", "b.pyc"], tmp_path / "place")
    laid = {str(path.relative_to(tmp_path / "place")) for path in (tmp_path / "place").rglob("*")}
    assert laid == {"pkg", "pkg/a.py", "b.pyc"}
