"""How a rollout ended (`StopReason`), and a table of what can go wrong: who is to blame, whether to retry,
and whether to grade it.

A rollout that ends well has no cause. Any other end has exactly one. If the agent caused it, the rollout is
graded. If anything else did, it never gets a reward.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from harnessgym.disk import full_disk
from harnessgym.errors import (
    CapabilityError,
    ConfigError,
    HarnessError,
    HarnessGymError,
    ImageError,
    PolicyError,
    ProxyError,
    RewardError,
    SandboxError,
    StoreError,
    TaskError,
    TraceError,
    TrainerError,
    UpstreamError,
)
from harnessgym.sandbox import ExecResult


class StopReason(StrEnum):
    """What ended a rollout. The last five give no reward. `outcome.failure` has the exact cause."""

    FINISHED = "finished"
    """The harness ended by itself with exit status 0."""
    HARNESS_ERROR = "harness_error"
    """The harness ended with another exit status or by a signal."""
    TIMEOUT = "timeout"
    """The wall-clock limit passed, and everything that the harness had started was killed."""
    TURN_LIMIT = "turn_limit"
    """The harness asked for more model calls than its session allows."""
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - no password
    """The harness made another call after its session's sampled tokens were used up."""
    OUTPUT_LIMIT = "output_limit"
    """The harness wrote more output than the limit."""
    MEMORY_LIMIT = "memory_limit"
    """The harness was killed because it used more memory than its sandbox has."""
    DISK_LIMIT = "disk_limit"
    """The harness failed because it had filled its sandbox's disk."""
    CONTRACT_VIOLATED = "contract_violated"
    """A contract of the session was broken, or its next call would have broken it."""
    NO_CALLS = "no_calls"
    """The harness never called the proxy."""
    ENGINE_ERROR = "engine_error"
    """A model call failed, and the policy is not to blame."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox, proxy or grader failed."""
    NODE_LOST = "node_lost"
    """The node that ran the rollout died."""
    CANCELLED = "cancelled"
    """The rollout was cancelled."""


Phase = Literal["open", "prepare", "run", "reconstruct", "evaluate"]
"""The phase of a rollout in which an error occurred. `open`, a part of preparing, makes the sandbox."""
Retry = Literal["never", "bounded", "always"]
"""Whether to retry. bounded: while the slot has attempts left. always: the attempt does not count, because
the rollout did not cause the failure. never: do not."""
_LONGEST_S = 60.0


class Blame(StrEnum):
    """Who is to blame."""

    AGENT = "agent"
    TASK = "task"
    INFRASTRUCTURE = "infrastructure"
    USER = "user"


class Cause(StrEnum):
    """What went wrong."""

    HARNESS_TIMEOUT = "harness_timeout"
    HARNESS_ERROR = "harness_error"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - no password
    OUTPUT_LIMIT = "output_limit"
    MEMORY_LIMIT = "memory_limit"
    DISK_LIMIT = "disk_limit"
    CONTRACT_VIOLATED = "contract_violated"
    NO_CALLS = "no_calls"
    ENGINE_ERROR = "engine_error"
    ENGINE_SILENT = "engine_silent"
    PROXY_ERROR = "proxy_error"
    CAPABILITY_MISSING = "capability_missing"
    HARNESS_UNUSABLE = "harness_unusable"
    TASK_UNUSABLE = "task_unusable"
    IMAGE_BUILD = "image_build"
    SETUP_FAILED = "setup_failed"
    SANDBOX_START = "sandbox_start"
    SANDBOX_DIED = "sandbox_died"
    GRADER_FAILED = "grader_failed"
    GRADER_TIMEOUT = "grader_timeout"
    REWARD_FAILED = "reward_failed"
    TRACE_DAMAGED = "trace_damaged"
    STORE_ERROR = "store_error"
    HOST_DISK_FULL = "host_disk_full"
    HOST_REFUSED = "host_refused"
    NODE_LOST = "node_lost"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Consequence:
    """The consequences of a cause."""

    stop_reason: StopReason
    blame: Blame
    retry: Retry = "never"
    grade: bool = False
    """Whether the workspace is graded. The reward is valid exactly then."""
    backoff_s: float = 0.0
    """Seconds before the second attempt; doubled for each further one, up to a minute."""
    meaning: str = ""

    @property
    def reward_valid(self) -> bool:
        """Whether a reward may be trained on."""
        return self.grade

    def wait_s(self, attempt: int) -> float:
        """Seconds that the slot waits after this attempt failed. Attempts count from 0."""
        return min(self.backoff_s * 2.0 ** min(attempt, 32), _LONGEST_S)


def _agents(stop_reason: StopReason, meaning: str) -> Consequence:
    return Consequence(stop_reason, Blame.AGENT, grade=True, meaning=meaning)


def _others(
    blame: Blame, retry: Retry, backoff_s: float, meaning: str, stop: StopReason | None = None
) -> Consequence:
    return Consequence(stop or StopReason.SANDBOX_ERROR, blame, retry, backoff_s=backoff_s, meaning=meaning)


CONSEQUENCES: Mapping[Cause, Consequence] = {
    Cause.HARNESS_TIMEOUT: _agents(StopReason.TIMEOUT, "The wall-clock limit passed."),
    Cause.HARNESS_ERROR: _agents(
        StopReason.HARNESS_ERROR, "The harness ended with an error status or by a signal."
    ),
    Cause.TURN_LIMIT: _agents(StopReason.TURN_LIMIT, "It used up its model calls."),
    Cause.TOKEN_LIMIT: _agents(StopReason.TOKEN_LIMIT, "It used up its sampled tokens."),
    Cause.OUTPUT_LIMIT: _agents(StopReason.OUTPUT_LIMIT, "It wrote more output than is kept."),
    Cause.MEMORY_LIMIT: _agents(
        StopReason.MEMORY_LIMIT, "It was killed for using more memory than its sandbox has."
    ),
    Cause.DISK_LIMIT: _agents(
        StopReason.DISK_LIMIT, "It failed because it had filled the disk of its sandbox."
    ),
    Cause.CONTRACT_VIOLATED: _agents(StopReason.CONTRACT_VIOLATED, "A contract of its session was broken."),
    Cause.NO_CALLS: _others(
        Blame.USER, "bounded", 0.1, "The harness never called the proxy.", StopReason.NO_CALLS
    ),
    Cause.ENGINE_ERROR: _others(
        Blame.INFRASTRUCTURE, "bounded", 0.5, "A model call failed in the engine.", StopReason.ENGINE_ERROR
    ),
    Cause.ENGINE_SILENT: _others(
        Blame.INFRASTRUCTURE,
        "bounded",
        1.0,
        "The harness ran out of time because an engine did not answer.",
        StopReason.ENGINE_ERROR,
    ),
    Cause.PROXY_ERROR: _others(
        Blame.INFRASTRUCTURE, "bounded", 0.5, "The proxy refused a request or was unreachable."
    ),
    Cause.CAPABILITY_MISSING: _others(
        Blame.USER, "never", 0.0, "The sandbox backend lacks what the task needs."
    ),
    Cause.HARNESS_UNUSABLE: _others(
        Blame.USER, "never", 0.0, "The harness, or how it is configured, cannot be launched."
    ),
    Cause.TASK_UNUSABLE: _others(
        Blame.TASK, "never", 0.0, "The task is malformed, or its set has no task of this name."
    ),
    Cause.IMAGE_BUILD: _others(Blame.TASK, "bounded", 2.0, "The image could not be built."),
    Cause.SETUP_FAILED: _others(Blame.TASK, "bounded", 1.0, "A setup command failed or took too long."),
    Cause.SANDBOX_START: _others(Blame.INFRASTRUCTURE, "bounded", 0.5, "No sandbox could be made."),
    Cause.SANDBOX_DIED: _others(Blame.INFRASTRUCTURE, "bounded", 0.5, "A sandbox died or became unusable."),
    Cause.GRADER_FAILED: _others(Blame.TASK, "bounded", 0.2, "The grader failed, or gave no usable reward."),
    Cause.GRADER_TIMEOUT: _others(Blame.TASK, "bounded", 0.2, "The grader took too long."),
    Cause.REWARD_FAILED: _others(Blame.USER, "bounded", 0.2, "A reward of the run could not be computed."),
    Cause.TRACE_DAMAGED: _others(
        Blame.INFRASTRUCTURE, "bounded", 0.2, "The recorded tokens contradict each other."
    ),
    Cause.STORE_ERROR: _others(
        Blame.INFRASTRUCTURE, "bounded", 1.0, "The trace store refused a query or was unreachable."
    ),
    Cause.HOST_DISK_FULL: _others(Blame.INFRASTRUCTURE, "bounded", 5.0, "A disk of this machine is full."),
    Cause.HOST_REFUSED: _others(
        Blame.INFRASTRUCTURE, "bounded", 0.5, "The machine ran out of files, processes or memory."
    ),
    Cause.NODE_LOST: _others(
        Blame.INFRASTRUCTURE, "always", 0.0, "The node that ran it died.", StopReason.NODE_LOST
    ),
    Cause.CANCELLED: _others(Blame.USER, "never", 0.0, "It was cancelled.", StopReason.CANCELLED),
    Cause.UNKNOWN: _others(Blame.INFRASTRUCTURE, "bounded", 0.5, "The error is not in this table."),
}

_BY_ERROR: Mapping[type[BaseException], Cause | Mapping[Phase, Cause]] = {
    CapabilityError: Cause.CAPABILITY_MISSING,
    ImageError: Cause.IMAGE_BUILD,
    SandboxError: {"open": Cause.SANDBOX_START},
    HarnessError: Cause.HARNESS_UNUSABLE,
    ConfigError: {"evaluate": Cause.GRADER_FAILED, "prepare": Cause.HARNESS_UNUSABLE},
    TaskError: {"evaluate": Cause.GRADER_FAILED},
    RewardError: Cause.REWARD_FAILED,
    ProxyError: Cause.PROXY_ERROR,
    UpstreamError: Cause.ENGINE_ERROR,
    PolicyError: Cause.ENGINE_ERROR,
    TraceError: Cause.TRACE_DAMAGED,
    StoreError: Cause.STORE_ERROR,
    TrainerError: Cause.UNKNOWN,
    TimeoutError: {"evaluate": Cause.GRADER_TIMEOUT, "open": Cause.SANDBOX_START},
    asyncio.CancelledError: Cause.CANCELLED,
    OSError: Cause.HOST_REFUSED,
    MemoryError: Cause.HOST_REFUSED,
    HarnessGymError: Cause.UNKNOWN,
    BaseException: Cause.UNKNOWN,
}
"""Error to cause. The nearest base class of an error decides."""
_ELSEWHERE: Mapping[type[BaseException], Cause] = {
    SandboxError: Cause.SANDBOX_DIED,
    ConfigError: Cause.TASK_UNUSABLE,
    TaskError: Cause.TASK_UNUSABLE,
    TimeoutError: Cause.HOST_REFUSED,
}
"""Causes in phases that the table above does not name."""

_BY_LIMIT: Mapping[str, Cause] = {
    "contract": Cause.CONTRACT_VIOLATED,
    "turns": Cause.TURN_LIMIT,
    "refusals": Cause.TURN_LIMIT,
    "tokens": Cause.TOKEN_LIMIT,
}
"""The proxy's name of a limit to the cause. The first limit in this order decides."""
_NO_SPACE = b"No space left on device"
_LAST = 4_096
"""Bytes at the end of a failed program's output that are searched for the reason."""


class RolloutFailed(HarnessGymError):
    """A rollout cannot continue, for a known cause. Never leaves the node."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


def cause_of_error(error: BaseException, phase: Phase) -> Cause:
    """The cause that an error in this phase of a rollout means."""
    if isinstance(error, RolloutFailed):
        return error.cause
    # Before the type of the error: a full disk of this machine can surface as almost any of them.
    if full_disk(error):
        return Cause.HOST_DISK_FULL
    kind = next(known for known in type(error).__mro__ if known in _BY_ERROR)
    causes = _BY_ERROR[kind]
    return causes if isinstance(causes, Cause) else causes.get(phase, _ELSEWHERE[kind])


def cause_of_end(result: ExecResult, limits: Collection[str | None]) -> Cause | None:
    """The cause that ended a harness; None if it ended by itself and well.

    `limits` are the budgets of its session that it exceeded.
    """
    if result.timed_out:
        return Cause.HARNESS_TIMEOUT
    # Before the exit status: a harness often crashes because the proxy refused its call beyond a limit.
    reached = next((cause for limit, cause in _BY_LIMIT.items() if limit in limits), None)
    if reached is not None:
        return reached
    if not result.ok:
        return _of_crash(result)
    if result.stdout_truncated or result.stderr_truncated:
        return Cause.OUTPUT_LIMIT
    return None


def _of_crash(result: ExecResult) -> Cause:
    """The cause of a crash: out of memory, out of disk, or an error of the harness. The agent is to blame for
    each.
    """
    if result.out_of_memory:
        return Cause.MEMORY_LIMIT
    last_output = result.stderr[-_LAST:] + result.stdout[-_LAST:]
    return Cause.DISK_LIMIT if _NO_SPACE in last_output else Cause.HARNESS_ERROR


def cause_of_stop(reason: StopReason) -> Cause | None:
    """The cause for a stop reason that was recorded without one; None for a good end."""
    if reason is StopReason.FINISHED:
        return None
    if reason is StopReason.SANDBOX_ERROR:
        return Cause.UNKNOWN
    return next(cause for cause, consequence in CONSEQUENCES.items() if consequence.stop_reason is reason)
