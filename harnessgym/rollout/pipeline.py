"""What the rollouts of a node share on their way through prepare, run, reconstruct and evaluate.

The harness is a black box: it gets a workspace, a key and an address. What it did is read from the store
afterwards. The workspace is graded once every process the harness started is dead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harnessgym.faults.fault import FaultsSection
from harnessgym.harness import Harness
from harnessgym.proxy_client import ControlClient
from harnessgym.reward import Need, Reward, RewardWeights
from harnessgym.rollout.attempt import Attempt
from harnessgym.rollout.proxy_watch import ProxyWatch
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.rollout.stage import Stages
from harnessgym.run_config.session import SessionOptions
from harnessgym.sandbox import SandboxBackend
from harnessgym.store import TraceStore
from harnessgym.store.rollouts import RolloutRow
from harnessgym.task import Task
from harnessgym.tasks.payload import task_of


@dataclass
class Pipeline:
    """The parts that all rollouts of a node share."""

    store: TraceStore
    control: ControlClient
    backend: SandboxBackend
    harnesses: dict[str, Harness]
    options: SessionOptions
    task: Callable[[str], Task]
    """Returns a task of the run's own set by its id."""
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """Rewards by name, computed in order after the task's grader."""
    faults: FaultsSection = field(default_factory=FaultsSection)
    """Faults to inject into sandboxes."""
    proxy_socket: Path | None = None
    """The proxy's socket. Connection faults are injected in front of it."""
    weights: RewardWeights | None = None
    """How the trained reward is summed; None trains on the grader's reward alone."""
    second_opinion: bool = False
    """Whether a rollout with reward 1 is also compared with the oracle solution; see
    `harnessgym.grading.differential.differential_test`."""

    @cached_property
    def proxy_watch(self) -> ProxyWatch:
        """Tells whether the proxy was away while a harness ran."""
        return ProxyWatch(self.control)

    @cached_property
    def needed(self) -> frozenset[Need]:
        """Everything the rewards need."""
        return frozenset(need for reward in self.rewards.values() for need in reward.needs)

    def task_of(self, row: RolloutRow) -> Task:
        """A rollout's task: the one submitted with it, or one of the set. Raises `TaskError`."""
        return self.task(row.task_key) if row.task_payload is None else task_of(row.task_payload)

    def attempt(self, row: RolloutRow, stages: Stages, pressure: Pressure) -> Attempt:
        """An attempt at a claimed rollout."""
        return Attempt(self, stages, pressure, row)
