"""The processes of a run on a cluster, each in its own place, under the same supervisor as on one machine.

A thread polls every place for the status of its process, even while the supervisor is busy. All decisions are
made in the supervisor's calls, which wait only for the first places.

    placing ──► placed ──► starting ──► running ──► ended ──► placed     the process ended, its place remains
                                                      └─────► placing    the place was lost, request another
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from harnessgym.cluster.backend import ClusterBackend, Handle, desired_nodes
from harnessgym.cluster.process_host import HostInfo, StartRequest, release
from harnessgym.cluster.process_slot import KILLED, ProcessSlot, Role
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.run_config.cluster import Need
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.supervisor.process_settings import LaunchPlan, outside_names
from harnessgym.supervisor.processes import Restarts, log_tail

_TICK_S = 0.1
_END_S = 8.0
_LISTENERS: Mapping[Role, tuple[str, ...]] = {"proxy": ("fd", "control_fd"), "engine": ("fd",)}
"""Settings that get the descriptors of a process's sockets. Other roles have no sockets."""
_COMMANDS: Mapping[Role, str] = {
    "proxy": "proxy",
    "engine": "engine",
    "agent": "weights-agent",
    "node": "node",
    "trainer": "train-worker",
}
_TOLD: tuple[Role, ...] = ("engine", "agent", "node")
"""Roles whose settings contain the proxy's address."""


class Fleet:
    """See `harnessgym.supervisor.processes.Processes`."""

    def __init__(self, folder: RunFolder, config: RunConfig, ground: ClusterBackend) -> None:
        """Raises `ConfigError` for a run that one machine alone could run."""
        refuse_unshared(config)
        self.folder = folder
        self.config = config
        self.ground = ground
        self.launch_plan: LaunchPlan | None = None
        self._slots: dict[str, ProcessSlot] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._ask, name="pulse", daemon=True)
        self._told: list[str] = []
        self._ending: list[tuple[Handle, Future[Any], float]] = []
        self._recorded: object = None
        self._looked = 0.0
        self._unfit: list[float] = []
        """Times at which nodes were placed on machines where they cannot work."""

    @property
    def by_name(self) -> Mapping[str, ProcessSlot]:
        """See `Processes`."""
        return self._slots

    def end_leftovers(self) -> list[str]:
        """See `Processes`."""
        return self.ground.end_leftovers()

    def open(self) -> None:
        """Requests places for everything but the trainer and waits for them.

        Raises `ConfigError` if the cluster does not provide them in time.
        """
        self._pulse.start()
        self._claim("proxy", "proxy")
        for index in range(len(self.config.engine_policies)):
            self._claim(f"engine-{index}", "engine")
        for name in outside_names(self.config):
            self._claim(name, "agent")
        for index in range(desired_nodes(self.folder)):
            self._claim(f"node-{index}", "node")
        self._await("placed", lambda slot: slot.state == "placed")

    def lacks(self, backend: str) -> str | None:
        """Why a node's machine cannot use a sandbox backend; None if all can."""
        asked = [(slot, slot.handle.call("lacks", backend, self.config.code)) for slot in self._of("node")]
        for slot, answer in asked:
            if problem := self._told_by(slot, answer):
                return f"{slot.where}: {problem}"
        return None

    def _told_by(self, slot: ProcessSlot, answer: "Future[Any]") -> Any:
        """Waits for a place's answer. Raises `ConfigError` if the place is silent or lost."""
        try:
            error = answer.exception(self.config.cluster.wait_s)
        except TimeoutError:
            raise ConfigError(
                f"The place of {slot.name} ({slot.where}) has not answered for "
                f"{self.config.cluster.wait_s:g} s. Is its machine there? The same command starts again; "
                "cluster.wait_s says how long it waits."
            ) from None
        if error is not None:
            raise ConfigError(
                f"The place of {slot.name} ({slot.where}) was lost before the start ({_short(error)}). "
                "Is its machine there? The same command starts again."
            ) from error
        return answer.result()

    def start_all(self, launch_plan: LaunchPlan) -> None:
        """See `Processes`."""
        self.launch_plan = launch_plan
        if launch_plan.training:
            for name in launch_plan.trainers:
                self._claim(name, "trainer")
        self._await("started", lambda slot: slot.state in ("running", "ended"))

    def reconcile(self) -> list[str]:
        """Advances every process, gives up silent places, lets nodes join and leave. Returns messages.

        Raises `HarnessGymError` if the polling thread has died or the cluster is out of reach for too long.
        """
        if not self._pulse.is_alive():
            raise HarnessGymError(
                "The supervisor can ask its places no more. The same command goes on from here."
            )
        self.ground.check()
        with self._lock:
            for slot in list(self._slots.values()):
                self._move_on(slot)
            self._follow_wish()
            self._see_off()
            self._record()
            messages = self._told
            self._told = []
        return messages

    def exited(self) -> list[tuple[str, int]]:
        """See `Processes`."""
        with self._lock:
            ended = [slot for slot in self._slots.values() if slot.state == "ended" and not slot.leaving]
            return [(slot.name, KILLED if slot.code is None else slot.code) for slot in ended]

    def kill(self, name: str) -> None:
        """See `Processes`."""
        with self._lock:
            self._slots[name].handle.call("stop")

    def restart(self, name: str) -> None:
        """Restarts a process in its place, or in another one if that is lost.

        Raises `HarnessGymError` after too many restarts.
        """
        # Wait before taking the lock: the polling thread needs it, and places that are not polled for a while
        # kill their processes.
        if self._slots[name].about is None:
            self.ground.check(wait=True)
        with self._lock:
            slot = self._slots[name]
            slot.again.add(name, self.log_path(name))
            slot.code = None
            if slot.about is None:
                self._place(slot)
            else:
                slot.state = "placed"

    def forget(self, name: str) -> None:
        """See `Processes`."""
        with self._lock:
            self._leave(self._slots.pop(name))
            self._record()

    def close(self) -> None:
        """Ends all processes and their places."""
        # The polling thread first: it uses the slots. Places get `_END_S` in all to end in good order, then
        # they are killed.
        self._over.set()
        if self._pulse.is_alive():
            self._pulse.join()
        for slot in self._slots.values():
            self._leave(slot)
        self._slots.clear()
        wait([answer for _, answer, _ in self._ending], timeout=_END_S)
        for handle, _, _ in self._ending:
            handle.kill()
        self._ending.clear()
        with contextlib.suppress(OSError):
            self._record()
        self.ground.close()

    def log_path(self, name: str) -> Path:
        """The file that collects the output of a process, wherever it runs."""
        return self.folder.logs / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """See `Processes`."""
        return log_tail(self.log_path(name))

    def _of(self, role: Role) -> list[ProcessSlot]:
        return [slot for slot in self._slots.values() if slot.role == role]

    def _claim(self, name: str, role: Role) -> None:
        need: Need = getattr(self.config.cluster, role)
        need = need.times(self.config.trainer.processes) if role == "trainer" else need
        handle = self.ground.claim(name, need, _sockets(role))
        again = Restarts(self.config.supervisor.max_restarts)
        with self._lock:
            self._slots[name] = ProcessSlot(name, role, need, again, handle, self._about(handle, role))

    def _place(self, slot: ProcessSlot) -> None:
        """Requests another place for a process."""
        handle = self.ground.claim(slot.name, slot.need, _sockets(slot.role))
        slot.move(handle, self._about(handle, slot.role))

    def _about(self, handle: Handle, role: Role) -> "Future[Any]":
        shared = [str(self.folder.config_path)] if role in ("engine", "agent", "trainer") else []
        shared += (
            []
            if role == "node"
            else [str(Path(each.path) / "config.json") for each in self.config.all_policies]
        )
        backend = self.launch_plan.sandbox if role == "node" and self.launch_plan is not None else None
        return handle.call("about", shared, backend, self.config.code)

    def _await(self, what: str, there: Callable[[ProcessSlot], bool]) -> None:
        """Waits until `there` holds for all processes. Raises `ConfigError` that names the late ones."""
        deadline = time.monotonic() + self.config.cluster.wait_s
        while late := [slot.name for slot in self._slots.values() if not there(slot)]:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"After {self.config.cluster.wait_s:g} s these processes could not be {what}: "
                    f"{', '.join(late)}. The cluster has {self.ground.room()}. Add machines, ask for less "
                    "in [cluster], or raise cluster.wait_s."
                )
            self.reconcile()
            for name in [name for name, _ in self.exited() if self._slots[name].about is None]:
                self.restart(name)
            time.sleep(_TICK_S)

    def _ask(self) -> None:
        """Polls every place until `close`. Runs in a thread."""
        while not self._over.wait(_TICK_S):
            with self._lock:
                for slot in self._slots.values():
                    if slot.about is not None:
                        slot.see(self.log_path(slot.name))

    def _move_on(self, slot: ProcessSlot) -> None:
        if slot.lost(self.config.cluster.silent_s):
            self._lose(slot, f"has not answered for {self.config.cluster.silent_s:g} s")
        elif slot.leaving and slot.state in ("placing", "placed", "ended"):
            self._leave(self._slots.pop(slot.name))
            self._told.append(f"The {slot.name} process has left.")
        elif slot.state == "placing" and slot.answer.done():
            if (error := slot.answer.exception()) is not None:
                self._lose(slot, f"could not be made ({_short(error)})")
            else:
                self._arrive(slot, slot.answer.result())
        elif slot.state == "starting" and slot.answer.done():
            self._started(slot)
        elif slot.state == "placed" and (order := self._order(slot)) is not None:
            slot.state = "starting"
            slot.starts = slot.starts + 1
            slot.told = self._proxy
            slot.answer, slot.ordered = slot.handle.call("start", order), time.monotonic()
        elif slot.state == "running" and slot.role in _TOLD and slot.told != self._proxy:
            slot.told = self._proxy
            self._told.append(f"The proxy has moved: the {slot.name} process is told where it is.")
            slot.handle.call("stop")

    def _arrive(self, slot: ProcessSlot, about: HostInfo) -> None:
        """Handles a new place.

        A node that cannot work on its machine leaves if others remain. Otherwise raises `ConfigError`.
        """
        slot.about, slot.state, slot.heard = about, "placed", time.monotonic()
        problem = _problem(about)
        if problem is None:
            return
        others = [each for each in self._of("node") if each is not slot and not each.leaving]
        if slot.role != "node" or self.launch_plan is None or not others:
            raise ConfigError(f"The {slot.name} process cannot run on {about.name} ({about.host}): {problem}")
        self._told.append(
            f"The {slot.name} process cannot run on {about.name} ({about.host}), and leaves: {problem}"
        )
        self._unfit.append(time.monotonic())
        slot.leaving = True

    def _started(self, slot: ProcessSlot) -> None:
        """Handles the answer to a start request. An error may come from the place or from the network."""
        # The process may run even if the answer is an error. The place is given up only after `silent_s`,
        # when it has ended a process whose place is not polled; otherwise the process could run twice.
        error = slot.answer.exception()
        if error is None:
            slot.pid = slot.answer.result()
            slot.state = "running"
        elif time.monotonic() - slot.ordered > self.config.cluster.silent_s:
            self._lose(slot, f"could not be told to start ({_short(error)})")

    def _order(self, slot: ProcessSlot) -> StartRequest | None:
        """The request that starts a process; None while its settings are not known yet."""
        launch_plan = self.launch_plan
        proxy = self._proxy
        if launch_plan is None or (slot.role in _TOLD and not proxy):
            return None
        config: dict[str, Any] | None = None
        if slot.role == "proxy":
            settings = launch_plan.proxy()
        elif slot.role == "engine":
            settings = launch_plan.engine(slot.name, slot.urls[0], proxy[1])
        elif slot.role == "agent":
            settings = launch_plan.weights_agent(slot.name, proxy[1])
        elif slot.role == "node":
            settings = launch_plan.node(slot.name, proxy[1], proxy[0])
            config = self.config.model_dump(mode="json")
        else:
            settings = launch_plan.trainer(slot.name)
        return StartRequest(
            _COMMANDS[slot.role],
            settings,
            _LISTENERS.get(slot.role, ()),
            config,
            self.config.supervisor.threads,
        )

    @property
    def _proxy(self) -> tuple[str, ...]:
        """The proxy's URLs, for harnesses and for control; empty while it has no place."""
        slot = self._slots.get("proxy")
        return () if slot is None else slot.urls

    def _lose(self, slot: ProcessSlot, why: str) -> None:
        self._told.append(f"The place of {slot.name} {why}: {slot.where}. It is looked for elsewhere.")
        slot.handle.kill()
        slot.about = None
        slot.code = KILLED
        slot.state = "ended"

    def _follow_wish(self) -> None:
        """Lets nodes join or leave until there are as many as desired.

        A node that could not work on its machine is not replaced for `cluster.wait_s`, because the next one
        may get the same machine.
        """
        if self.launch_plan is None or time.monotonic() - self._looked < 1.0:
            return
        self._looked = time.monotonic()
        staying = [slot for slot in self._of("node") if not slot.leaving]
        wanted = desired_nodes(self.folder)
        names = {slot.name for slot in self._of("node")}
        unused = (name for index in range(wanted + len(names)) if (name := f"node-{index}") not in names)
        self._unfit = [when for when in self._unfit if self._looked - when < self.config.cluster.wait_s]
        for name in list(unused)[: max(0, wanted - len(staying) - len(self._unfit))]:
            self._claim(name, "node")
            self._told.append(f"The {name} process joins.")
        # The highest numbers leave first. The name of a leaving node stays taken until its rollouts are done.
        for slot in sorted(staying, key=lambda slot: int(slot.name.partition("-")[2]))[wanted:]:
            slot.leaving = True
            self._told.append(f"The {slot.name} process leaves when the rollouts that it has are done.")
            if slot.about is not None:
                slot.handle.call("drain")

    def _leave(self, slot: ProcessSlot) -> None:
        """Ends a place that is no longer needed, without waiting for it."""
        if slot.about is None:
            slot.handle.kill()
        else:
            self._ending.append((slot.handle, slot.handle.call("end"), time.monotonic() + _END_S))

    def _see_off(self) -> None:
        """Releases places that have ended or take too long to end."""
        for handle, answer, deadline in list(self._ending):
            if answer.done() or time.monotonic() > deadline:
                handle.kill()
                self._ending.remove((handle, answer, deadline))

    def _record(self) -> None:
        """Writes `places.json`, which shows people where each process runs."""
        rows = {
            slot.name: {"state": _state(slot), "where": slot.where, "restarts": slot.restarts}
            for slot in self._sorted()
        }
        if rows != self._recorded:
            self._recorded = rows
            write_json(self.folder.root / "places.json", rows)

    def _sorted(self) -> Iterable[ProcessSlot]:
        return sorted(self._slots.values(), key=lambda slot: slot.name)


def _sockets(role: Role) -> int:
    """The number of sockets on which a process listens."""
    return len(_LISTENERS.get(role, ()))


def _problem(about: HostInfo) -> str | None:
    """Why a process of the run cannot work on a machine; None if it can."""
    if about.release != release():
        return f"it has {about.release}, the supervisor {release()}. Install the same on all machines."
    if about.missing:
        return (
            f"there is no {', '.join(about.missing)}. The run's folder and the policy must be on a disk "
            "that all machines share, under the same path."
        )
    return about.lacks


def _short(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _state(slot: ProcessSlot) -> str:
    return "leaving" if slot.leaving else slot.state


def refuse_unshared(config: RunConfig) -> None:
    """Raises `ConfigError` for settings that do not work on several machines."""
    if config.store.url is None or not config.store.url.startswith("postgresql"):
        raise ConfigError(
            "store.url: several machines cannot share a SQLite file. Give a PostgreSQL database of this "
            "run's own, e.g. "
            '"postgresql+psycopg://USER@HOST/DATABASE".'
        )
    if config.node.serve:
        raise ConfigError(
            "node.serve: nodes of a cluster come and go, and serve no rollouts. Leave it empty."
        )
