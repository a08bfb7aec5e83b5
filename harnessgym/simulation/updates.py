"""Weight updates of the workers: the weight agents' protocol, or a pause of all workers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from harnessgym.simulation.clock import Clock
from harnessgym.simulation.draws import Draws
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.worker import SimulatedWorker


@dataclass
class Leases:
    """Leases on named resources: holder and expiry, as in the store."""

    _held: dict[str, tuple[str, float]] = field(default_factory=dict)

    def acquire(self, resource: str, holder: str, now: float, ttl_s: float) -> bool:
        """Take a lease that is free, expired or already the holder's. False if another holds it."""
        lease = self._held.get(resource)
        if lease is not None and lease[0] != holder and lease[1] > now:
            return False
        self._held[resource] = (holder, now + ttl_s)
        return True

    def renew(self, resource: str, holder: str, now: float, ttl_s: float) -> bool:
        """Extend a lease that is still held. False if it was lost."""
        if self._held.get(resource, ("", 0.0))[0] != holder:
            return False
        self._held[resource] = (holder, now + ttl_s)
        return True

    def release(self, resource: str, holder: str) -> None:
        """Give back a lease if it is still held."""
        if self._held.get(resource, ("", 0.0))[0] == holder:
            del self._held[resource]

    def holder_of(self, resource: str, now: float) -> str | None:
        """The present holder of a resource, or None."""
        lease = self._held.get(resource)
        return lease[0] if lease is not None and lease[1] > now else None


_HELD = float("inf")
"""Time to live of an agent's lease: a living agent renews it for as long as it needs it."""


class Updates:
    """Brings every worker to the newest version."""

    def __init__(self, clock: Clock, draws: Draws, config: SimulationConfig, fleet: SimulatedFleet) -> None:
        self._clock = clock
        self._draws = draws
        self._fleet = fleet
        self._options = config.updates
        self._mode = config.updates.mode
        self._leases = Leases()
        self._names = [f"update:{number}" for number in range(config.leases)]
        self._asking: deque[SimulatedWorker] = deque()
        self._updating: dict[int, tuple[int, str]] = {}
        """Workers in an update: the new version, and the lease they hold for it."""
        self._installed: list[SimulatedWorker] = []
        """Updated workers that wait for the others, if all serve again together."""
        self._deferred = False
        self.newest = 0
        self.quiet: Callable[[], bool] = lambda: True
        """Returns whether no rollout runs."""
        self.served: Callable[[], None] = lambda: None
        """Called when a worker has become ready."""
        fleet.drained = self._drained

    @property
    def busy(self) -> bool:
        """Whether any worker is updating or waits for an update."""
        return bool(self._updating or self._asking or self._deferred)

    def publish(self, version: int) -> None:
        """Make a version the newest."""
        self.newest = version
        self.follow()

    def follow(self) -> None:
        """Begin the updates that can begin, after a new version or when nothing runs any more."""
        if self._mode == "rolling":
            for worker in self._fleet.workers:
                self._follow(worker)
        elif not self._updating and any(self._wants(worker) for worker in self._fleet.workers):
            self._deferred = self._mode == "between" and not self.quiet()
            if not self._deferred:
                for worker in [each for each in self._fleet.workers if self._wants(each)]:
                    self._updating[worker.number] = (self.newest, "")
                for worker in [each for each in self._fleet.workers if each.number in self._updating]:
                    self._drain(worker, worker.life)

    def died(self, worker: SimulatedWorker) -> None:
        """Note a worker's death: its lease expires after its time to live, and no one waits for it."""
        worker.life += 1
        _, lease = self._updating.pop(worker.number, (0, ""))
        # A dead agent cannot give its lease back. It blocks others until it expires, as in the store.
        if lease:
            self._leases.renew(lease, self._holder(worker), self._clock.now, self._options.lease_ttl_s)
            self._clock.after(self._options.lease_ttl_s, self._ask_again)
        if worker in self._asking:
            self._asking.remove(worker)
        if worker in self._installed:
            self._installed.remove(worker)
        self._serve_together()
        if self._mode != "rolling":
            self.follow()

    def restarted(self, worker: SimulatedWorker) -> None:
        """Note a worker's restart: it serves the newest version and has dropped its lease."""
        for name in self._names:
            self._leases.release(name, self._holder(worker))
        self._fleet.set_state(worker, "ready", self.newest)
        self._fleet.dispatch()
        self._ask_again()
        self.served()

    def _wants(self, worker: SimulatedWorker) -> bool:
        return (
            worker.state == "ready" and worker.version != self.newest and worker.number not in self._updating
        )

    def _follow(self, worker: SimulatedWorker) -> None:
        """Act as a weight agent: if there is a newer version, take one of f leases or wait for one."""
        if not self._wants(worker):
            return
        holder = self._holder(worker)
        now = self._clock.now
        lease = next((name for name in self._names if self._leases.acquire(name, holder, now, _HELD)), None)
        if lease is None:
            if worker not in self._asking:
                self._asking.append(worker)
            return
        self._updating[worker.number] = (self.newest, lease)
        self._clock.after(self._draws.transfer_s(), self._drain, worker, worker.life)

    def _drain(self, worker: SimulatedWorker, life: int) -> None:
        """Stop taking new calls and give those in flight `drain_s` seconds."""
        if worker.life != life:
            return
        self._fleet.set_state(worker, "draining")
        if worker.load:
            self._clock.after(self._options.drain_s, self._install, worker, worker.life)
        else:
            self._install(worker, worker.life)

    def _drained(self, worker: SimulatedWorker) -> None:
        if worker.number in self._updating:
            self._install(worker, worker.life)

    def _install(self, worker: SimulatedWorker, life: int) -> None:
        if worker.life != life:
            return
        # The drain ends either by time or by the last call. The new life makes the other event void.
        worker.life += 1
        self._fleet.suspend(worker)
        seconds = self._draws.install_s() + (0.0 if self._mode == "rolling" else self._draws.transfer_s())
        self._clock.after(seconds, self._installed_one, worker, worker.life)

    def _installed_one(self, worker: SimulatedWorker, life: int) -> None:
        if worker.life != life:
            return
        if self._mode != "rolling":
            self._installed.append(worker)
            self._serve_together()
            return
        version, lease = self._updating.pop(worker.number)
        self._leases.release(lease, self._holder(worker))
        self._fleet.set_state(worker, "ready", version)
        self._fleet.dispatch()
        self.served()
        self._follow(worker)
        self._ask_again()

    def _serve_together(self) -> None:
        """Make all workers ready together once the last has its version."""
        if self._mode == "rolling" or not self._installed or len(self._installed) < len(self._updating):
            return
        done = self._installed
        self._installed = []
        for worker in done:
            self._fleet.set_state(worker, "ready", self._updating.pop(worker.number)[0])
        self._fleet.dispatch()
        self.served()
        self.follow()

    def _ask_again(self) -> None:
        """Let waiting workers try again for a lease."""
        for _ in range(len(self._asking)):
            worker = self._asking.popleft()
            self._follow(worker)
            if worker in self._asking:  # still none: it keeps its place
                self._asking.remove(worker)
                self._asking.appendleft(worker)
                return

    def _holder(self, worker: SimulatedWorker) -> str:
        return f"worker-{worker.number}"
