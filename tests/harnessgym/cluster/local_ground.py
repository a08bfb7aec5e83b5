"""A cluster inside this process: places are real, machines are threads, and what runs in a place is a few
lines of Python.
"""

import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from harnessgym.cluster.process_host import ProcessHost
from harnessgym.errors import HarnessGymError
from harnessgym.heartbeat import VARIABLE

STAND_IN = """
import json, os, signal, sys, time
settings = json.load(open(sys.argv[2]))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
print("up", sys.argv[1], flush=True)
end = os.path.join(os.path.dirname(sys.argv[2]), "end")
while not os.path.exists(end):
    os.write(int(os.environ["HARNESSGYM_HEARTBEAT"]), b".")
    time.sleep(0.02)
code = int(open(end).read())
os.unlink(end)
print("harnessgym: It ended.", file=sys.stderr, flush=True)
sys.exit(code)
"""


class QuietPlace(ProcessHost):
    """Runs a stand-in for the services, which need engines and policies: it waits, and ends when and how
    it is told.
    """

    def run(self, order, settings, descriptors, heartbeat):
        far = heartbeat.far.fileno()
        command = [sys.executable, "-S", "-c", STAND_IN, order.command, str(settings)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                pass_fds=[*descriptors, far],
                start_new_session=True,
                env={VARIABLE: str(far)},
            )
        heartbeat.started()
        return process


class Machine:
    """One place on a machine of its own: a thread does what it is asked in order, until the machine is
    lost.
    """

    def __init__(self, name, sockets, silent_s):
        self.name, self.lost = name, threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.place = self._thread.submit(QuietPlace, "127.0.0.1", sockets, silent_s).result()

    def call(self, method, *arguments):
        if self.lost.is_set():
            return Future()
        return self._thread.submit(getattr(self.place, method), *arguments)

    def lose(self):
        """Nobody hears of it any more; what runs there goes on until it notices."""
        self.lost.set()

    def kill(self):
        if not self.lost.is_set():
            self._thread.submit(self.place.end).result()
        self._thread.shutdown()

    def tell(self, code):
        """Let the process that runs here end."""
        (self.place.folder / "end").write_text(str(code))


class Promise:
    """A place for which there is no room."""

    def __init__(self):
        self.calls = []

    def call(self, method, *arguments):
        self.calls.append(method)
        return Future()

    def kill(self):
        self.calls.append("kill")


@dataclass
class LocalGround:
    """See `harnessgym.cluster.backend.ClusterBackend`. `free` is how many more places there is room for."""

    silent_s: float
    free: int = 100
    machines: dict = field(default_factory=dict)
    """Name of a process to its places, the newest last."""
    closed: bool = False
    problem: str | None = None
    """What there is to say of a cluster that is out of reach."""

    def end_leftovers(self):
        return []

    def claim(self, name, need, sockets):
        if self.free < 1:
            return Promise()
        self.free -= 1
        machine = Machine(name, sockets, self.silent_s)
        self.machines.setdefault(name, []).append(machine)
        return machine

    def check(self, *, wait=False):
        if self.problem is not None:
            raise HarnessGymError(self.problem)

    def room(self):
        return f"CPU {self.free} of 100 free"

    def close(self):
        self.closed = True

    def at(self, name):
        """The newest place of a process."""
        return self.machines[name][-1]

    def end(self):
        """Whatever a test left."""
        for machine in (machine for machines in self.machines.values() for machine in machines):
            machine.place.end()
