"""The simulated node: rollouts go through environments, engines and graders."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from harnessgym.simulation.clock import Clock
from harnessgym.simulation.draws import Draws, RolloutDraw
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.worker import SimulatedCall, SimulatedWorker


@dataclass(slots=True, eq=False)
class Rollout:
    """One rollout and how far its work is."""

    group: "Group"
    work: RolloutDraw
    turn: int = 0
    context: int = 0
    spans: dict[int, int] = field(default_factory=dict)
    """Sampled tokens by version."""
    cached: tuple[int, int] | None = None
    """Worker and version whose cache holds the context."""
    stage: Literal["queued", "calling", "acting", "ungraded", "grading", "graded"] = "queued"
    call: SimulatedCall | None = None
    """Its last call."""

    @property
    def tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(self.spans.values())


@dataclass(slots=True, eq=False)
class Group:
    """The rollouts of one task."""

    ordinal: int
    """Place in the order of submission."""
    draw: int
    """Index of its draw. A task that is submitted again has the same work."""
    members: list[Rollout] = field(default_factory=list)
    left: int = 0
    """Members not yet graded."""
    submitted_version: int = 0
    """Oldest version that may sample its tokens."""
    versions: frozenset[int] = frozenset()
    """Versions that sampled its tokens, once it is complete."""
    stopped: bool = False
    """Whether it was given up while open."""

    @property
    def id(self) -> str:
        """Its ordinal as text."""
        return str(self.ordinal)

    @property
    def complete(self) -> bool:
        """Whether all members are graded."""
        return not self.left

    @property
    def tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(member.tokens for member in self.members)


class SimulatedNode:
    """Runs submitted groups. `ended`, `completed` and `emptied` are callbacks for others to set."""

    def __init__(
        self, clock: Clock, measures: Measures, draws: Draws, config: SimulationConfig, fleet: SimulatedFleet
    ) -> None:
        self._clock = clock
        self._measures = measures
        self._draws = draws
        self._fleet = fleet
        self._config = config
        self._by_task = config.work.sampling == "task"
        self._queue: deque[Rollout] = deque()
        self._grading: deque[Rollout] = deque()
        self._places = config.work.environments
        """Free environments. Whole groups hold them if sampling is by task."""
        self._occupied, self._graders = measures.level("environments"), measures.level("graders")
        self._queued, self._ungraded = measures.level("rollouts queued"), measures.level("rollouts ungraded")
        self.open = 0
        """Incomplete groups."""
        self.unfinished = 0
        """Rollouts not yet graded."""
        self.ended: Callable[[], None] = lambda: None
        """Called when a rollout is graded and its group is not yet complete."""
        self.completed: Callable[[Group], None] = lambda _: None
        self.emptied: Callable[[], None] = lambda: None
        """Called when the last open group was stopped."""
        fleet.answered = self._answered

    def submit(self, ordinal: int, draw: int, version: int) -> Group:
        """Submit a group. It begins once environments are free. `version` is the oldest one served."""
        group = Group(ordinal, draw, submitted_version=version)
        size = self._config.trainer.group_size
        group.members = [Rollout(group, self._draws.rollout(draw * size + slot)) for slot in range(size)]
        group.left = size
        self.open += 1
        self.unfinished += size
        self._queue.extend(group.members)
        self._queued.add(size)
        self._begin()
        return group

    def stop(self, group: Group) -> None:
        """Cancel a group's unfinished rollouts and free their places."""
        left = [member for member in group.members if member.stage != "graded"]
        if self._by_task and left[0].stage != "queued":
            self._places += len(group.members)
        group.stopped = True
        for member in left:
            self._cancel(member)
        self.open -= 1
        self.unfinished -= len(left)
        # The freed places are filled only after every member is cancelled, or a queued one would start.
        self._begin()
        self._grade()
        if not self.open:
            self.emptied()

    def _cancel(self, rollout: Rollout) -> None:
        match rollout.stage:
            case "queued":
                self._queue.remove(rollout)
                self._queued.add(-1)
            case "ungraded":
                self._grading.remove(rollout)
                self._ungraded.add(-1)
            case "grading":
                self._graders.add(-1)
            case "calling" | "acting":
                if rollout.stage == "calling" and rollout.call is not None:
                    self._fleet.withdraw(rollout.call)
                self._occupied.add(-1)
                self._places += int(not self._by_task)

    def _begin(self) -> None:
        """Start queued rollouts in free environments."""
        needed = self._config.trainer.group_size if self._by_task else 1
        while self._queue and self._places >= needed:
            self._places -= needed
            for _ in range(needed):
                self._run(self._queue.popleft())
                self._queued.add(-1)

    def _run(self, rollout: Rollout) -> None:
        self._occupied.add(1)
        self._call(rollout)

    def _call(self, rollout: Rollout) -> None:
        work = rollout.work
        turn = rollout.turn
        call = SimulatedCall(
            rollout, work.tokens[turn], work.read[turn], rollout.context, rollout.spans, rollout.cached
        )
        rollout.stage = "calling"
        rollout.call = call
        self._fleet.send(call)

    def _answered(self, call: SimulatedCall, worker: SimulatedWorker) -> None:
        rollout = call.rollout
        rollout.context += call.read + call.wanted
        rollout.cached = (worker.number, worker.version)
        rollout.stage = "acting"
        self._clock.after(rollout.work.environment_s[rollout.turn], self._acted, rollout)

    def _acted(self, rollout: Rollout) -> None:
        """The environment has answered: make the next call or end the rollout."""
        if rollout.group.stopped:
            return
        rollout.turn += 1
        if rollout.turn < len(rollout.work.tokens):
            self._call(rollout)
            return
        self._occupied.add(-1)
        if not self._by_task:
            self._places += 1
            self._begin()
        rollout.stage = "ungraded"
        self._grading.append(rollout)
        self._ungraded.add(1)
        self._grade()

    def _grade(self) -> None:
        while self._grading and self._graders.value < self._config.work.graders:
            rollout = self._grading.popleft()
            self._ungraded.add(-1)
            self._graders.add(1)
            rollout.stage = "grading"
            self._clock.after(rollout.work.grading_s, self._graded, rollout)

    def _graded(self, rollout: Rollout) -> None:
        if rollout.group.stopped:
            return
        self._graders.add(-1)
        # The grader is free whatever follows, so the next rollout gets it first.
        self._grade()
        if self._draws.failures.random() < self._config.failures.rollout:
            self._again(rollout)
            return
        group = rollout.group
        rollout.stage = "graded"
        group.left -= 1
        self.unfinished -= 1
        if group.complete:
            group.versions = frozenset(version for member in group.members for version in member.spans)
            self.open -= 1
            if self._by_task:
                self._places += len(group.members)
                self._begin()
            self.completed(group)
        else:
            self.ended()

    def _again(self, rollout: Rollout) -> None:
        """Run a rollout again after an infrastructure failure, before new ones. Its tokens are lost."""
        self._measures.counts["tokens failed"] += rollout.tokens
        self._measures.counts["rollouts failed"] += 1
        rollout.turn = 0
        rollout.context = 0
        rollout.cached = None
        rollout.spans.clear()
        if self._by_task:
            self._run(rollout)
            return
        rollout.stage = "queued"
        self._queue.appendleft(rollout)
        self._queued.add(1)
        self._begin()
