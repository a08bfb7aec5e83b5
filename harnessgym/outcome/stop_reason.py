"""Why a rollout ended, as values and not exceptions."""

from enum import StrEnum


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
