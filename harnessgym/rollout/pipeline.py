"""What the rollouts of a node share on their way through prepare, run, reconstruct and evaluate.

The harness is a black box: it gets a workspace, a key and an address. What it did is read from the store
afterwards. The workspace is graded once every process the harness started is dead.

`ProxyWatch` notices that the proxy was away while a harness ran. A harness may fail or time out because its
calls were cut off or never read. That is not the harness's fault, and the trace cannot show it: a call that
a stopped proxy has not read is recorded nowhere. So a node asks the proxy for its health once a second
while it has rollouts.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harnessgym.faults.fault import FaultsSection
from harnessgym.grading.by_value.judge import ByValueJudge
from harnessgym.harness import Harness
from harnessgym.proxy_client import ControlClient
from harnessgym.reward import Need, Reward, RewardWeights
from harnessgym.rollout.attempt import Attempt
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.rollout.stage import Stages
from harnessgym.run_config.run import DemandedIntegrity, SecondOpinion
from harnessgym.run_config.session import SessionOptions
from harnessgym.sandbox import SandboxBackend
from harnessgym.store import TraceStore
from harnessgym.store.rollouts import RolloutRow
from harnessgym.task import Task
from harnessgym.tasks.payload import task_of

_EVERY_S = 1.0
_AWAY_S = 3.0
"""Seconds without an answer after which the proxy counts as away. A busy machine delays answers by a
second."""

_KEPT = 256


@dataclass(frozen=True, slots=True)
class Absence:
    """A time between two answers in which the proxy was away."""

    began: float
    ended: float
    replaced: bool
    """Whether a different process answered afterwards."""

    def __str__(self) -> str:
        if self.replaced:
            return "The proxy was started again while the harness ran"
        return (
            f"The proxy did not answer for {self.ended - self.began:.1f} s while the harness ran, or the "
            "node was stopped"
        )


class ProxyWatch:
    """Polls the proxy and remembers when it was away. All times are monotonic.

    ```python
    async with watch.watching():
        ...
        if absence := await watch.absence(began, ended):
            ...
    ```
    """

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._watchers = 0
        self._asking: asyncio.Task[None] | None = None
        self._answered = 0.0
        """When the proxy last answered."""
        self._process: str | None = None
        """The process id string of its last answer; None before the first."""
        self._absences: deque[Absence] = deque(maxlen=_KEPT)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Poll while the block runs. Several tasks may be in such a block at once."""
        self._watchers += 1
        if self._asking is None:
            self._answered = time.monotonic()
            self._process = None
            self._asking = asyncio.create_task(self._keep_asking())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                asking = self._asking
                self._asking = None
                asking.cancel()
                await asyncio.wait([asking])
                self._absences.clear()

    async def absence(self, began: float, ended: float) -> Absence | None:
        """The last absence that overlaps the time from `began` to `ended`; None if there is none."""
        # A proxy that stopped just before `ended` has no closed absence yet: ask once more to close it.
        await self._ask()
        overlapping = [each for each in self._absences if each.began < ended and each.ended > began]
        return overlapping[-1] if overlapping else None

    async def _keep_asking(self) -> None:
        while True:
            await self._ask()
            await asyncio.sleep(_EVERY_S)

    async def _ask(self) -> None:
        """Ask once. Without an answer nothing is noted; the next answer closes the absence."""
        process = await self._control.process(timeout_s=_AWAY_S)
        if process is None:
            return
        now = time.monotonic()
        replaced = self._process not in (None, process)
        if replaced or now - self._answered > _EVERY_S + _AWAY_S:
            self._absences.append(Absence(self._answered, now, replaced))
        self._answered = now
        self._process = process


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
    second_opinion: SecondOpinion = "off"
    """Whether what is rewarded is also compared with the oracle solution."""
    integrity: DemandedIntegrity = "any"
    """Which rewards count. A reward of another integrity is an infrastructure error."""

    @cached_property
    def by_value(self) -> ByValueJudge:
        """Judges by value. Keeps gold solutions in the backend's folder, which is cleared after a crash."""
        return ByValueJudge(self.backend.root)

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
