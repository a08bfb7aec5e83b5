"""Every error HarnessGym raises on purpose, named after the boundary that was crossed.

    HarnessGymError
    ├── ConfigError          a config file, option or registry name is wrong
    ├── PolicyError          a model folder or policy version cannot be used
    ├── StoreError           the trace store refused or failed
    │   ├── SchemaError      the database has another schema revision than this code
    │   └── StoreUnavailable ... for now: it is locked, full or away; later the same may succeed
    ├── TraceError           recorded tokens contradict each other
    ├── ProxyError           the proxy or its control API refused or failed
    ├── UpstreamError        an inference engine failed or answered inconsistently
    │   └── UpstreamLost     ... because it is gone
    │       └── UpstreamSilent  ... or sends nothing, though it is there
    ├── SandboxError         a sandbox could not be made or used: infrastructure, never a reward
    │   ├── CapabilityError  a task asks for something the sandbox backend lacks
    │   └── ImageError       a container image could not be built or found
    ├── HarnessError         a harness cannot be described or launched
    ├── TaskError            a task or task set is malformed
    ├── RewardError          a reward could not be computed: never a reward of zero
    ├── TransferError        weights could not be fetched from another machine; later the same may succeed
    └── TrainerError         training cannot go on

A message says what happened, where, and what to do.
"""


class HarnessGymError(Exception):
    """Base of all errors raised on purpose; the CLI prints these without a traceback."""


class ConfigError(HarnessGymError):
    """A config file, option or registry name is wrong."""


class PolicyError(HarnessGymError):
    """A model folder or policy version cannot be used."""


class StoreError(HarnessGymError):
    """The trace store refused or failed."""


class SchemaError(StoreError):
    """The database has another schema revision than this code."""


class StoreUnavailable(StoreError):
    """The trace store is locked, full or away. Trying again later may succeed."""


class TraceError(HarnessGymError):
    """Recorded tokens contradict each other."""


class ProxyError(HarnessGymError):
    """The proxy or its control API refused or failed."""


class UpstreamError(HarnessGymError):
    """An inference engine failed or answered inconsistently."""


class UpstreamLost(UpstreamError):
    """An inference engine is gone: it refused the connection or closed it during an answer."""


class UpstreamSilent(UpstreamLost):
    """An inference engine accepted a request but sends nothing: it is stopped, stuck or unreachable."""


class SandboxError(HarnessGymError):
    """A sandbox could not be made or used: an infrastructure failure, never a reward."""


class CapabilityError(SandboxError):
    """A task asks for something the sandbox backend lacks."""


class ImageError(SandboxError):
    """A container image could not be built or found."""


class HarnessError(HarnessGymError):
    """A harness cannot be described or launched."""


class TaskError(HarnessGymError):
    """A task or task set is malformed."""


class RewardError(HarnessGymError):
    """A reward could not be computed. The rollout then has no result, which is not a reward of zero."""


class TransferError(HarnessGymError):
    """Weights could not be fetched from another machine. Trying again later may succeed."""


class TrainerError(HarnessGymError):
    """Training cannot continue."""
