import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym import errors
from harnessgym.errors import (
    CapabilityError,
    HarnessError,
    ImageError,
    ProxyError,
    RewardError,
    SandboxError,
    StoreUnavailable,
    TaskError,
    UpstreamLost,
)
from harnessgym.outcome.failure import (
    CONSEQUENCES,
    Blame,
    Cause,
    Phase,
    RolloutFailed,
    StopReason,
    cause_of_end,
    cause_of_error,
    cause_of_stop,
)
from harnessgym.sandbox import ExecResult

PHASES = Phase.__args__
ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.HarnessGymError)
]


def ended(**values):
    plain = {"exit_code": 0, "signal": None, "stdout": b"", "stderr": b"", "stdout_truncated": False}
    plain |= {"stderr_truncated": False, "timed_out": False, "wall_s": 1.0}
    return ExecResult(**{**plain, **values})


def test_every_cause_has_one_consequence_with_a_meaning():
    assert set(CONSEQUENCES) == set(Cause)
    assert all(found.meaning for found in CONSEQUENCES.values())


@pytest.mark.parametrize("reason", StopReason)
def test_every_stop_reason_has_one_cause_that_leads_back_to_it(reason):
    cause = cause_of_stop(reason)
    if reason is StopReason.FINISHED:
        assert cause is None
    else:
        assert CONSEQUENCES[cause].stop_reason is reason


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "kind", [*ERRORS, OSError, TimeoutError, MemoryError, KeyError, asyncio.CancelledError]
)
def test_every_error_has_one_cause_in_every_phase_and_is_never_graded(kind, phase):
    cause = cause_of_error(kind("words"), phase)
    assert not CONSEQUENCES[cause].grade
    assert not CONSEQUENCES[cause].reward_valid
    assert CONSEQUENCES[cause].blame is not Blame.AGENT


@pytest.mark.parametrize(
    ("error", "phase", "cause"),
    [
        (SandboxError("x"), "open", Cause.SANDBOX_START),
        (SandboxError("x"), "run", Cause.SANDBOX_DIED),
        (SandboxError("x"), "evaluate", Cause.SANDBOX_DIED),
        (ImageError("x"), "open", Cause.IMAGE_BUILD),
        (CapabilityError("x"), "prepare", Cause.CAPABILITY_MISSING),
        (HarnessError("x"), "prepare", Cause.HARNESS_UNUSABLE),
        (TaskError("x"), "prepare", Cause.TASK_UNUSABLE),
        (TaskError("x"), "evaluate", Cause.GRADER_FAILED),
        (TimeoutError(), "evaluate", Cause.GRADER_TIMEOUT),
        (RewardError("x"), "evaluate", Cause.REWARD_FAILED),
        (ProxyError("x"), "prepare", Cause.PROXY_ERROR),
        (UpstreamLost("x"), "run", Cause.ENGINE_ERROR),
        (StoreUnavailable("x"), "reconstruct", Cause.STORE_ERROR),
        (OSError(errno.ENOSPC, "full"), "evaluate", Cause.HOST_DISK_FULL),
        (OSError(errno.EMFILE, "files"), "run", Cause.HOST_REFUSED),
        (KeyError("x"), "evaluate", Cause.UNKNOWN),
        (RolloutFailed(Cause.SETUP_FAILED, "x"), "prepare", Cause.SETUP_FAILED),
    ],
)
def test_causes_are_told_apart(error, phase, cause):
    assert cause_of_error(error, phase) is cause


def test_a_full_disk_is_found_behind_another_error():
    error = SandboxError("cannot write")
    error.__cause__ = OSError(errno.EDQUOT, "quota")
    assert cause_of_error(error, "run") is Cause.HOST_DISK_FULL


def test_what_the_agent_does_is_graded_and_not_tried_again_and_nothing_else_is():
    for cause, found in CONSEQUENCES.items():
        assert found.grade == (found.blame is Blame.AGENT), cause
        assert not (found.grade and found.retry != "never"), cause


@pytest.mark.parametrize(
    ("result", "limits", "cause"),
    [
        (ended(), {None}, None),
        (ended(timed_out=True, exit_code=None, signal=9), {"turns"}, Cause.HARNESS_TIMEOUT),
        (ended(exit_code=1), {"turns"}, Cause.TURN_LIMIT),
        (ended(exit_code=1), {"tokens", "turns"}, Cause.TURN_LIMIT),
        (ended(exit_code=1), {"tokens"}, Cause.TOKEN_LIMIT),
        (ended(), {"contract", "turns"}, Cause.CONTRACT_VIOLATED),
        (ended(exit_code=2), (), Cause.HARNESS_ERROR),
        (ended(exit_code=None, signal=6), (), Cause.HARNESS_ERROR),
        (ended(exit_code=None, signal=9), (), Cause.MEMORY_LIMIT),
        (ended(exit_code=1, stderr=b"...\nMemoryError\n"), (), Cause.MEMORY_LIMIT),
        (ended(exit_code=1, stdout=b"write: No space left on device"), (), Cause.DISK_LIMIT),
        (ended(stdout=b"No space left on device", stdout_truncated=True), (), Cause.OUTPUT_LIMIT),
    ],
)
def test_a_harness_ends_for_one_reason(result, limits, cause):
    assert cause_of_end(result, limits) is cause
    assert cause is None or CONSEQUENCES[cause].grade


@given(st.sampled_from(list(Cause)), st.integers(0, 10_000))
def test_waiting_doubles_and_ends_at_a_minute(cause, attempt):
    found = CONSEQUENCES[cause]
    assert 0.0 <= found.wait_s(attempt) <= found.wait_s(attempt + 1) <= 60.0
    if 0 < found.wait_s(attempt + 1) < 60.0:
        assert found.wait_s(attempt + 1) == 2 * found.wait_s(attempt)
