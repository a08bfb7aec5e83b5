"""Programs run in a real sandbox: their own lines are told from those of others."""

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
