import asyncio
import contextlib
import errno

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

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
from harnessgym.rollout.failure import (
    CONSEQUENCES,
    Blame,
    Cause,
    Phase,
    RolloutFailed,
    cause_of_end,
    cause_of_error,
    cause_of_stop,
)
from harnessgym.rollout.stop_reason import StopReason
from harnessgym.sandbox import ExecResult
from harnessgym.store.tables import rewards

PHASES = Phase.__args__
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HarnessGymError)]


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
@pytest.mark.parametrize("kind", [*ERRORS, OSError, TimeoutError, MemoryError, KeyError, asyncio.CancelledError])
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


def one_group(line):
    return line.groups().get("open", 0) == 0 and sum(line.groups().values()) >= 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("harness", "cause"), [("eats", "memory_limit"), ("is_killed", "memory_limit"), ("fills", "disk_limit")]
)
async def test_an_agent_that_uses_up_its_sandbox_is_graded(make_line, harness, cause):
    async with make_line(harness) as line:
        await line.run(one_group)
        found = {(row["stop_reason"], row["cause"], row["verdict"], row["attempt"]) for row in line.rollouts()}
        assert found == {(cause, cause, "valid", 0)}
        assert [member.reward for member in line.complete()[0].members] == [0.0, 0.0]


@pytest.mark.anyio
async def test_a_sandbox_that_dies_is_no_reward_and_the_slot_is_tried_again(make_line):
    async with make_line("waits", max_attempts=2) as line:
        killed = []

        def kill_the_first(line):
            if not killed and len(line.upstream.asked) == 2:
                (server,) = line.node.pipeline.backend._servers.values()
                killed.extend(psutil.Process(server.pid).children())  # the inits of both rollouts
                for init in killed:
                    init.kill()
            return one_group(line)

        await line.run(kill_the_first)
        assert len(killed) == 2
        by_attempt = {(row["attempt"], row["status"], row["cause"], row["verdict"]) for row in line.rollouts()}
        died, well = (0, "failed", "sandbox_died", "infrastructure_error"), (1, "finished", None, "valid")
        assert by_attempt == {died, well}
        assert line.store.read(lambda conn: conn.execute(select(func.count()).select_from(rewards)).scalar_one()) == 2


@pytest.mark.anyio
async def test_a_setup_command_that_fails_is_the_tasks_affair(make_line):
    async with make_line("good", tasks="BadlySetUp", max_attempts=1) as line:
        await line.run(lambda line: len(line.rollouts()) >= 2)
        for row in line.rollouts():
            assert (row["cause"], row["verdict"]) == ("setup_failed", "infrastructure_error")
            assert "no such package" in row["detail"]
            assert "status 3" in row["detail"]


@pytest.mark.anyio
async def test_setup_sees_the_tasks_files_and_its_work_is_there_for_the_harness(make_line):
    async with make_line("good", tasks="SetUp") as line:
        await line.run(one_group)
        assert {row["verdict"] for row in line.rollouts()} == {"valid"}
        assert all(row["latencies"]["prepare.setup"] > 0 for row in line.rollouts())


@pytest.mark.anyio
async def test_what_cannot_get_better_is_not_tried_again(make_line):
    async with make_line("good", tasks="Containers", max_attempts=3, abort_after_failures=99) as line:
        await line.run(lambda line: line.groups().get("dropped", 0) >= 1)
        assert {(row["cause"], row["attempt"]) for row in line.rollouts()} == {("capability_missing", 0)}


@pytest.mark.anyio
async def test_a_plugins_bug_is_written_down_and_ends_one_attempt_only(make_line):
    async with make_line("good", max_attempts=1) as line:

        class Broken:
            side_calls = ()
            image = ""

            def install(self):
                return ()

            def launch(self, task, endpoint):
                raise KeyError("argv")

        line.node.pipeline.harnesses["good"] = Broken()
        with contextlib.suppress(SandboxError):  # a fast node has given up by then: all of its rollouts failed
            await line.run(lambda line: len(line.rollouts()) >= 2)
        assert {(row["cause"], row["verdict"]) for row in line.rollouts()} == {("unknown", "infrastructure_error")}
        assert "KeyError: 'argv'" in line.rollouts()[0]["detail"]
