"""How a command ended, in words."""

import pytest

from harnessgym.sandbox import ExecResult


def ended(exit_code=0, signal=None, stdout=b"", stderr=b"", *, timed_out=False, wall_s=1.0):
    return ExecResult(exit_code, signal, stdout, stderr, False, False, timed_out, wall_s)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ended(1), "exit status 1: no output"),
        (ended(2, stdout=b"so far\n"), "exit status 2: so far"),
        (ended(2, stdout=b"so far\n", stderr=b" no such file\n"), "exit status 2: no such file"),
        (ended(1, stderr=b"MemoryError\n"), "exit status 1 (out of memory): MemoryError"),
        (ended(0, stderr=b"a test of MemoryError\n"), "exit status 0: a test of MemoryError"),
        (ended(None, 9), "killed by signal 9: no output"),
        (ended(None, 9, stderr=b"\xff"), "killed by signal 9: \ufffd"),
        (ended(None, 9, timed_out=True, wall_s=60.04), "timed out after 60 s: no output"),
        (ended(None, 9, timed_out=True, wall_s=0.52), "timed out after 0.5 s: no output"),
        (ended(None, timed_out=True, wall_s=2.0, stdout=b"half"), "timed out after 2.0 s: half"),
    ],
)
def test_how_a_command_ended_is_said_in_one_way(result, text):
    assert result.describe() == text


def test_of_much_output_the_last_bytes_are_kept():
    assert ended(1, stderr=b"x" * 9 + b"end").describe(5) == "exit status 1: xxend"
    assert len(ended(1, stderr=b"x" * 9_000).last_output()) == 1_000


def test_only_a_command_that_failed_was_out_of_memory():
    assert ended(None, 9).out_of_memory
    assert ended(1, stdout=b"bad_alloc").out_of_memory
    assert not ended(1, stdout=b"bad_alloc" + b"x" * 5_000).out_of_memory
    assert not ended(0, stdout=b"bad_alloc").out_of_memory
