"""All engine workers as the proxy sees them: a call goes to a ready one and moves when that one dies.

`ReadyWorkers` holds those that may take a call, so that routing need not scan all workers for each call.
"""

import random
from collections import Counter, deque
from collections.abc import Callable

from harnessgym.scheduling.routing import prefer
from harnessgym.simulation.clock import Clock
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.settings import EnginesSection
from harnessgym.simulation.worker import SimulatedCall, SimulatedWorker, call_speeds
from harnessgym.store.workers import WorkerState


class ReadyWorkers:
    """A set of workers that tracks the least load. Adding, removing and choosing take constant time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._workers: list[SimulatedWorker] = []
        self._places: dict[int, int] = {}
        self._loads: list[int] = [0]
        """Number of workers at each load."""
        self._least = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, worker: SimulatedWorker) -> bool:
        return worker.number in self._places

    def add(self, worker: SimulatedWorker) -> None:
        """Add a worker."""
        self._places[worker.number] = len(self._workers)
        self._workers.append(worker)
        self._count(worker.load, 1)

    def remove(self, worker: SimulatedWorker) -> None:
        """Remove a worker."""
        # The last worker takes the freed place, so that removal does not shift the others.
        place = self._places.pop(worker.number)
        last = self._workers.pop()
        if last is not worker:
            self._workers[place] = last
            self._places[last.number] = place
        self._count(worker.load, -1)

    def changed(self, worker: SimulatedWorker, before: int) -> None:
        """Note that a worker's load has changed from `before`."""
        if worker.number in self._places:
            self._count(worker.load, 1)
            self._count(before, -1)

    @property
    def least(self) -> int:
        """The smallest load. Raises `IndexError` if there is no worker."""
        while not self._loads[self._least]:
            self._least += 1
        return self._least

    def choose(self, owner: SimulatedWorker | None) -> SimulatedWorker | None:
        """The worker for a call by the proxy's rule; None if there is none."""
        if not self._workers:
            return None
        known = owner if owner is not None and owner.number in self._places else None
        return prefer(known, self._two(), self.least)

    def _two(self) -> list[SimulatedWorker]:
        """Two different workers at random, or the only one. Costs a third of `Random.sample`."""
        count = len(self._workers)
        draw = self._rng.random
        if count == 1:
            return self._workers[:]
        first = int(draw() * count)
        second = int(draw() * (count - 1))
        return [self._workers[first], self._workers[second + (second >= first)]]

    def _count(self, load: int, change: int) -> None:
        while load >= len(self._loads):
            self._loads.append(0)
        self._loads[load] += change
        if change > 0:
            self._least = min(self._least, load)


class SimulatedFleet:
    """Workers and their calls in flight. The node sets the callback `answered`, the updates set `drained`."""

    def __init__(self, clock: Clock, measures: Measures, engines: EnginesSection, seed: int) -> None:
        self._clock = clock
        self._measures = measures
        speeds = call_speeds(engines)
        self.workers = [SimulatedWorker(number, engines, speeds) for number in range(engines.workers)]
        self.ready = ReadyWorkers(random.Random(seed))
        self.standing: Counter[tuple[WorkerState, int]] = Counter()
        """Workers by state and version."""
        self.answered: Callable[[SimulatedCall, SimulatedWorker], None] = lambda _call, _worker: None
        self.drained: Callable[[SimulatedWorker], None] = lambda _: None
        """Called when a draining worker has no calls left."""
        self.halted = False
        self._pending: deque[SimulatedCall] = deque()
        self._busy, self._waiting = measures.level("engines"), measures.level("calls waiting")
        for worker in self.workers:
            self.ready.add(worker)
            self.standing[worker.state, worker.version] += 1

    def send(self, call: SimulatedCall) -> None:
        """Send a call to a worker. It waits while none can take it."""
        owner = self.workers[call.cached[0]] if call.cached else None
        worker = call.at = None if self.halted else self.ready.choose(owner)
        if worker is None:
            self._pending.append(call)
            self._waiting.add(1)
            return
        before = worker.load
        worker.waiting.append(call)
        self._waiting.add(1)
        self.ready.changed(worker, before)
        self._run(worker)

    def set_state(self, worker: SimulatedWorker, state: WorkerState, version: int | None = None) -> None:
        """Change a worker's state, and its version if given. A ready one starts the calls waiting at it."""
        if worker in self.ready:
            self.ready.remove(worker)
        self.standing[worker.state, worker.version] -= 1
        for name, change in ((worker.state, -1), (state, 1)):
            if name != "ready":
                self._measures.level(f"workers {name}").add(change)
        worker.state = state
        worker.version = worker.version if version is None else version
        self.standing[state, worker.version] += 1
        if state == "ready":
            self.ready.add(worker)
            self._run(worker)

    def dispatch(self) -> None:
        """Send waiting calls. Called once all workers that become ready together are ready."""
        while self._pending and self.ready and not self.halted:
            self._waiting.add(-1)
            self.send(self._pending.popleft())

    def suspend(self, worker: SimulatedWorker) -> None:
        """Stop a worker for an update. Its calls stay and are prefilled again when it is ready."""
        calls = self._stop(worker)
        worker.waiting.extendleft(reversed(calls))
        self._waiting.add(len(calls))
        self._measures.counts["calls interrupted"] += len(calls)
        self.set_state(worker, "updating")

    def kill(self, worker: SimulatedWorker) -> None:
        """Kill a worker. Its calls continue on other workers from the tokens so far."""
        calls = [*self._stop(worker), *worker.waiting]
        self._waiting.add(-len(worker.waiting))
        before = worker.load
        worker.waiting.clear()
        self.ready.changed(worker, before)
        # Dead before its calls are sent again, or one could come back to it.
        self.set_state(worker, "dead")
        self._measures.counts["calls moved"] += len(calls)
        for call in calls:
            call.cached = None
            self.send(call)

    def withdraw(self, call: SimulatedCall) -> None:
        """Cancel a call whose answer is no longer needed."""
        worker = call.at
        if worker is None:
            self._pending.remove(call)
            self._waiting.add(-1)
            return
        before = worker.load
        if call in worker.waiting:
            worker.waiting.remove(call)
            self._waiting.add(-1)
        else:
            self._sampled(call, worker.withdraw(call, self._clock.now), worker)
            self._busy.add(-int(not worker.running))
        self.ready.changed(worker, before)
        self._run(worker)
        if worker.state == "draining" and not worker.load:
            self.drained(worker)

    def halt(self) -> None:
        """Stop all calls until `resume`."""
        self.halted = True
        for worker in self.workers:
            calls = self._stop(worker)
            before = worker.load
            self._waiting.add(len(calls))
            for call in (*calls, *worker.waiting):
                call.at = None
                self._pending.append(call)
            worker.waiting.clear()
            self.ready.changed(worker, before)

    def resume(self) -> None:
        """Continue the stopped calls."""
        self.halted = False
        self.dispatch()

    def settle(self) -> None:
        """Count the tokens of running calls at the end of the run."""
        for worker in self.workers:
            self._stop(worker)

    def serving(self) -> list[tuple[WorkerState, int]]:
        """The present pairs of state and version, each once."""
        return [kind for kind, count in self.standing.items() if count]

    def _run(self, worker: SimulatedWorker) -> None:
        """Start the calls waiting at a serving worker and schedule its next event."""
        now = self._clock.now
        if worker.state in ("ready", "draining") and worker.waiting:
            idle = not worker.running
            waited = len(worker.waiting)
            worker.start(now)
            self._waiting.add(len(worker.waiting) - waited)
            self._busy.add(int(idle and bool(worker.running)))
        # A new call only slows the others down, so an event that is already scheduled may come too early.
        # `_wake` then finds nothing finished and schedules the next one.
        if (due := worker.due(now)) < worker.wake_at:
            worker.wake_at = due
            self._clock.after(due - now, self._wake, worker, due)

    def _wake(self, worker: SimulatedWorker, due: float) -> None:
        """Finish due calls. Does nothing if the due time has changed since this was scheduled."""
        if due != worker.wake_at:
            return
        worker.wake_at = float("inf")
        before = worker.load
        done = worker.finished(self._clock.now)
        for call in done:
            self._sampled(call, call.wanted - call.sampled, worker)
        self.ready.changed(worker, before)
        if done and not worker.running:
            self._busy.add(-1)
        self._run(worker)
        for call in done:
            self.answered(call, worker)
        if done and worker.state == "draining" and not worker.load:
            self.drained(worker)

    def _stop(self, worker: SimulatedWorker) -> list[SimulatedCall]:
        """Take the running calls out of a worker and record their tokens."""
        before = worker.load
        calls_with_tokens = worker.take_back(self._clock.now)
        # Makes the scheduled event void: `_wake` compares its time with this.
        worker.wake_at = float("inf")
        for call, tokens in calls_with_tokens:
            self._sampled(call, tokens, worker)
        self._busy.add(-int(bool(calls_with_tokens)))
        self.ready.changed(worker, before)
        return [call for call, _ in calls_with_tokens]

    def _sampled(self, call: SimulatedCall, tokens: int, worker: SimulatedWorker) -> None:
        if tokens:
            call.sampled += tokens
            call.spans[worker.version] = call.spans.get(worker.version, 0) + tokens
            self._measures.counts["tokens sampled"] += tokens
