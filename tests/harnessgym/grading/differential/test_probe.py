"""Programs run in a real sandbox: their own lines are told from those of others."""

from importlib.resources import files

import pytest

from harnessgym.grading.differential.suite import Probe, probe, program
from harnessgym.sandbox import ExecResult
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

BEGAN, ENDED = {"began": True}, {"ended": True}
WRITE = """
import json, sys
job = json.load(sys.stdin)
def line(**fields):
    print(job["nonce"], json.dumps(fields).encode().hex(), flush=True)
line(began=True)
"""


def run_of(*lines, foreign=0, timed_out=False, truncated=False):
    return Probe(lines, foreign, ExecResult(0, None, b"", b"", truncated, False, timed_out, 0.1))


def test_a_run_begins_and_ends_with_a_line():
    assert (run_of(BEGAN, ENDED).began, run_of(BEGAN, ENDED).ended) == (True, True)
    assert (run_of().began, run_of().ended) == (False, False)


def test_a_run_that_wrote_after_its_end_or_timed_out_has_not_ended():
    assert not run_of(BEGAN, ENDED, {"case": 0}).ended
    assert not run_of(BEGAN, ENDED, timed_out=True).ended


@pytest.mark.parametrize(
    ("run", "forged"),
    [
        (run_of(BEGAN, ENDED), False),
        (run_of(BEGAN, {"case": 0}), False),
        (run_of(BEGAN, ENDED, foreign=1), True),
        (run_of(BEGAN, BEGAN), True),
        (run_of(BEGAN, ENDED, ENDED), True),
        (run_of(BEGAN, ENDED, truncated=True), True),
    ],
)
def test_lines_of_others_and_two_edges_are_forged(run, forged):
    assert run.forged is forged


@pytest.mark.parametrize("name", ["comparing", "tracing"])
def test_programs_are_valid_python(name):
    compile(program(name), name, "exec")


@pytest.mark.anyio
async def test_lines_are_read_and_foreign_ones_are_counted(tmp_path, anyio_backend):
    text = f"""{WRITE}
print("hello")
print("0" * 32, b'{{"case": 1}}'.hex(), flush=True)
print(job["nonce"], "no hex", flush=True)
print(job["nonce"], b"[1]".hex(), flush=True)
line(case=0, sent=job["sent"])
line(ended=True)
"""
    settings = ProcessSettings(workspace_root=tmp_path / "w")
    async with ProcessBackend(settings) as backend, backend.open(Limits()) as sandbox:
        run = await probe(sandbox, text, {"sent": [1, "é"]}, 20.0)
    assert run.lines == (BEGAN, {"case": 0, "sent": [1, "é"]}, ENDED)
    assert run.foreign == 4
    assert (run.began, run.ended, run.forged) == (True, True, True)


STALE = """
import importlib.util, os, py_compile
compiled = importlib.util.cache_from_source("thing.py")
py_compile.compile("thing.py", compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
os.truncate("thing.py", 0)
"""
CALLED = {"module": "thing", "function": "f", "new": None, "args": [], "kwargs": {}}
JOBS = {
    "comparing": {"roots": ["."], "cases": [CALLED], "case_s": 1.0, "hangs": 1},
    "tracing": {
        "roots": ["."],
        "files": {"test_thing.py": "import thing\ndef test_it(): pass\n"},
        "order": ["test_thing.py"],
        "targets": {},
        "classes": {},
        "most": 1,
    },
    "loading": {"roots": ["."], "modules": ["thing"], "files": {}},
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", JOBS)
async def test_a_compiled_file_that_does_not_match_its_source_is_not_imported(name, tmp_path, anyio_backend):
    """The compiled file raises, and the source is empty."""
    loading = files("environments.setup_tasks") / "loading.py"
    text = loading.read_text() if name == "loading" else program(name)
    settings = ProcessSettings(workspace_root=tmp_path / "w")
    async with ProcessBackend(settings) as backend, backend.open(Limits()) as sandbox:
        await sandbox.write("thing.py", b"raise RuntimeError('compiled before')")
        made = await sandbox.exec(["python3", "-c", STALE])
        assert made.ok, made.stderr
        asked = await sandbox.exec(["python3", "-c", "import thing"])
        assert b"compiled before" in asked.stderr
        run = await probe(sandbox, text, {"encoding": program("encoding"), **JOBS[name]}, 20.0)
    assert run.ended, run
    assert "compiled before" not in str(run)
    assert {
        "comparing": any(line.get("imported") for line in run.lines),
        "tracing": {"test": "test_thing.py::test_it", "passed": True} in run.lines,
        "loading": {"module": "thing", "problem": ""} in run.lines,
    }[name], run
