"""Blows to a machine of a Ray cluster: a quickstart over two raylets on this machine, with PostgreSQL.

The machine that is struck has an engine and a node; the other one has the proxy, the trainer, and an engine
and a node too. It is killed: its raylet gets SIGKILL, and what it ran dies with it. Or it freezes: everything
on it is stopped, for a moment, or until the cluster has given it up, and is then killed. A new machine with
the same resources joins at once, as one that was started again. See `tests.support.raylets`.
"""

import json
import random
import re
import signal
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.recovery import Campaign, How, Report
from tests.support.raylets import Raylets

MACHINE = "Ray node"
_NEEDS = {"proxy": "first", "trainer": "first", "engine": "engine", "node": "node"}
_SILENT_S = 4.0
"""How long a place may say nothing before it is given up."""
_MOMENT_S = 0.3, 1.2
"""How long a machine may freeze before Ray takes it for dead: see `tests.support.raylets`."""


@dataclass
class MachineCampaign(Campaign):
    """See `Campaign`; every victim is the machine."""

    command: ClassVar[str] = "cluster"
    record: ClassVar[str] = "places.json"
    silent_s: ClassVar[float] = 60.0
    """Ray runs its workers at low priority: on a busy machine one is easily silent for seconds."""
    to_the_end: ClassVar[bool] = False
    store_url: str = ""
    """An empty PostgreSQL database."""
    machines: Raylets = field(default_factory=Raylets)
    _dead: set[int] = field(default_factory=set)
    """Processes of the last machine that was killed."""
    _joining: threading.Thread | None = None
    _back_s: list[float] = field(default_factory=list)
    """Seconds from each kill until all processes ran again."""

    def _start(self) -> None:
        self.machines.add("first", first=2, engine=1, node=1)
        self.machines.add("second", engine=1, node=1)
        settings = {
            "store.url": self.store_url,
            "node.lease_s": "5",
            "cluster.address": self.machines.address,
            "cluster.nodes": "2",
            "cluster.silent_s": str(_SILENT_S),
            **{f"cluster.{role}.resources.{name}": "1" for role, name in _NEEDS.items()},
        }
        self.overrides = [*(f"--{name}={value}" for name, value in settings.items()), *self.overrides]
        super()._start()
        self._wait(self._whole, "all processes")

    def _runs(self, victim: str) -> bool:  # noqa: ARG002
        return self._whole()

    def _strike(self, victim: str, how: How, draw: random.Random) -> bool:
        if how != "kill":
            self.machines.signal("second", signal.SIGSTOP)
            time.sleep(draw.uniform(*_MOMENT_S) if how == "pause" else _SILENT_S + 2)
        if how == "pause":
            self.machines.signal("second", signal.SIGCONT)
            return True
        self._dead = set(self.machines.kill("second"))
        if how == "stop":
            self._revive(victim)
        return True

    def _revive(self, victim: str) -> None:  # noqa: ARG002
        """Beside the run, which goes on without it."""
        self._joining = threading.Thread(target=lambda: self.machines.add("second", engine=1, node=1))
        self._joining.start()

    def _settle(self, victim: str, struck: float) -> None:  # noqa: ARG002
        if self._joining is not None:
            self._joining.join()
        self._wait(self._whole, "all processes")
        if not self._finished():
            self._back_s.append(time.monotonic() - struck)

    def _end(self) -> None:
        super()._end()
        if self._joining is not None:
            self._joining.join()
        self.machines.close()

    def _examine(self, report: Report) -> None:
        super()._examine(report)
        report.noted = {"all_run_again_s": statistics.median(self._back_s or [0.0])}

    def _whole(self) -> bool:
        """Whether every process runs, and none that was killed is taken for one that does."""
        try:
            places = json.loads((self.folder / "places.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        running = [row["where"] for row in places.values() if row["state"] == "running"]
        pids = [int(found[1]) for where in running if (found := re.match(r"pid (\d+) ", where))]
        return len(pids) == 6 and not self._dead & set(pids)
