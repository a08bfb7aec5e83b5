"""Rollouts through their four stages: prepare, run, reconstruct, evaluate.

The harness is a black box: it gets a workspace, a key and an address. What it did is read from the store
afterwards, and judged from the workspace once everything it had started is dead.
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
    """What every rollout of a node shares."""

    store: TraceStore
    control: ControlClient
    backend: SandboxBackend
    harnesses: dict[str, Harness]
    options: SessionOptions
    task: Callable[[str], Task]
    """A task of the run's own set by its id."""
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """By name; asked after the task's grader, in order."""
    faults: FaultsSection = field(default_factory=FaultsSection)
    """What is made to go wrong inside sandboxes."""
    proxy_socket: Path | None = None
    """The proxy's, which faults of connections stand before."""
    weights: RewardWeights | None = None
    """What is trained on, where that is not the grader's reward alone."""
    second_opinion: bool = False
    """Whether what is rewarded with 1 is also compared with the solution; see
    `harnessgym.grading.differential.differential_test`."""

    @cached_property
    def proxy_watch(self) -> ProxyWatch:
        """Whether the proxy was away while a harness ran."""
        return ProxyWatch(self.control)

    @cached_property
    def needed(self) -> frozenset[Need]:
        """What the rewards look at."""
        return frozenset(need for reward in self.rewards.values() for need in reward.needs)

    def task_of(self, row: RolloutRow) -> Task:
        """What a rollout is about: the task that came with it, or one of the set. Raises `TaskError`."""
        return self.task(row.task_key) if row.task_payload is None else task_of(row.task_payload)

    def attempt(self, row: RolloutRow, stages: Stages, pressure: Pressure) -> Attempt:
        """One claimed rollout, to be run."""
        return Attempt(self, stages, pressure, row)
